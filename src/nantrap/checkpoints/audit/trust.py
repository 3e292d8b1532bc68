"""What a pickle would do when it is loaded, and whether a checkpoint may do it.

`torch.load(weights_only=False)` imports every global a pickle names and calls whatever it asks to call. The answers:

data     an exact pair of module and name, known to build data and nothing else, called with arguments that fit
named    something unknown that is only named, or a class that runs none of its code when it is made, by its source.
         A note
made     a class whose source is not on this machine: an instance is made and filled. A warning
unclear  a class whose source is here, and runs code that cannot be judged. A separate warning, and exit code 1
run      everything else that would be called, and what a checkpoint never needs to name. An error

How one name or one call is judged is in `effects`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from nantrap.checkpoints.audit.effects import judge_call, judge_name, judge_state, new_with_keywords
from nantrap.checkpoints.audit.known_names import LOADER, LOADER_NAME
from nantrap.checkpoints.audit.pickles import Name, Pickle, PickleCall
from nantrap.checkpoints.audit.verdict import Problem
from nantrap.incident.wording import escaped


class Imports:
    """What the pickles of a file would run, make and name, by full name.

    Attributes:
        run: what must not run, and how each was judged.
        made: classes whose source is not here.
        named: what is only named, and classes whose source is here and shows that making them runs nothing.
        unclear: classes whose code would run and cannot be judged, and what was found in it.
    """

    __slots__ = ("made", "named", "run", "unclear")

    def __init__(
        self,
        run: Mapping[str, str],
        made: tuple[str, ...] = (),
        named: tuple[str, ...] = (),
        unclear: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.run = run
        self.made = made
        self.named = named
        self.unclear = unclear

    def __add__(self, other: Imports) -> Imports:
        """Both together, each name once."""
        return Imports(
            {**self.run, **other.run},
            tuple(dict.fromkeys((*self.made, *other.made))),
            tuple(dict.fromkeys((*self.named, *other.named))),
            {**self.unclear, **other.unclear},
        )


NOTHING: Final = Imports({})


def judge(pickle: Pickle, *, loads: Callable[[PickleCall], bool] = lambda call: False) -> Imports:
    """What loading this pickle would do.

    Args:
        pickle: as `read_pickle` gave it.
        loads: whether a call of `torch.storage._load_from_bytes` was followed into its bytes and judged there.
    """
    run: dict[str, str] = {f"({offence})": offence for offence in pickle.offences}
    made: dict[str, None] = {}
    here: dict[str, None] = {}
    unclear: dict[str, str] = {}
    called: set[Name] = set()
    filled = Counter(id(target) for target, _ in pickle.builds)
    for call in pickle.calls:
        if filled[id(call.function)] > 1:  # the result may be something else than what was called
            run.setdefault("(the result of a call)", "is called, and it is not known what it is")
        if call.is_call_of(LOADER) and loads(call):
            called.add(LOADER_NAME)
            continue
        name, (kind, why) = judge_call(call)
        if isinstance(call.function, Name):
            called.add(call.function)
        elif (new := new_with_keywords(call)) is not None and isinstance(new.function, Name):
            called.add(Name(new.function.module, f"{new.function.qualname}.__new__"))
        if LOADER_NAME in call.arguments:
            run.setdefault(LOADER, "is kept to be called")
        if kind == "run":
            run.setdefault(name, why)
        elif kind == "unclear":
            unclear.setdefault(name, why)
        elif kind != "data":
            (made if kind == "absent" else here)[name] = None
    for target, state in pickle.builds:
        offence = judge_state(target, state)
        if offence is not None:
            run.setdefault(*offence)
    named: dict[str, None] = dict(here)
    for one in pickle.names:
        verdict = judge_name(one)
        if verdict == "run" and one not in called:
            run.setdefault(one.full, "is no part of a checkpoint")
        elif verdict == "named" and one.full not in made and one not in called:
            named[one.full] = None
    worse = {*run, *unclear}
    return Imports(
        run,
        tuple(name for name in made if name not in worse),
        tuple(name for name in named if name not in worse),
        {name: why for name, why in unclear.items() if name not in run},
    )


def problems_of_imports(imports: Imports) -> tuple[Problem, ...]:
    """At most one error, two warnings and one note."""
    problems = []
    if imports.run:
        names = tuple(imports.run)
        text = f"loading it would run {_join(names)}; it was read without running anything"
        problems.append(Problem("NT910", text, imports=names))
    if imports.unclear:
        names = tuple(imports.unclear)
        unclear = escaped(next(iter(imports.unclear.values())), most=200)
        text = f"loading it would run code of {_join(names)}, and nantrap cannot tell what it does ({unclear})"
        problems.append(Problem("NT913", text, severity="warning", imports=names))
    if imports.made:
        text = (
            f"loading it needs the code of {_join(imports.made)}, which is not on this machine: what it does is not "
            "known; the tensors were read without it"
        )
        problems.append(Problem("NT910", text, severity="warning", imports=imports.made))
    if imports.named:
        text = f"the pickle names {_join(imports.named)}, and runs none of their code"
        problems.append(Problem("NT910", text, severity="note", imports=imports.named))
    return tuple(problems)


def _join(names: tuple[str, ...], shown: int = 4) -> str:
    text = ", ".join(escaped(name, most=120) for name in names[:shown])
    return text if len(names) <= shown else f"{text} and {len(names) - shown} more"
