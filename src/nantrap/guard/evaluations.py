"""Calls of a model without gradients: a bad value in an evaluation or a generation is an incident of its own.

It belongs to no step, nothing is prevented, and the run goes on with what the model gave. Each call costs references
to its arguments, the random streams and one sum over the output, which is read at once where there is no device to
wait for; on a device the first sums are read, and later ones are added up and read now and then. Not everything that
is not finite is bad: -Inf is mostly a mask; what the program writes itself (a constant) is meant; NaN that the
program handles is expected.
"""

from __future__ import annotations

import contextlib
import math
import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nantrap import finite
from nantrap.errors import NantrapError
from nantrap.guard.diagnosis.describe import budget_of, new_incident, run_facts, with_location
from nantrap.guard.diagnosis.diagnose import explained, with_provenance, with_statement
from nantrap.guard.session import Session
from nantrap.guard.torch_private import autocast_state, is_any_autocast_on
from nantrap.guard.window import Diagnosed, Loss, Micro
from nantrap.incident import Action, Cause, During, Incident
from nantrap.incident.wording import counted, escaped
from nantrap.locate import Location, RngState, RootCall, finding, locate
from nantrap.locate.failure import Failure, active_replays
from nantrap.locate.replay.bare_call import (
    BadOutput,
    Held,
    bad_output,
    failure_of_call,
    flag_of,
    held_by,
    outside_inference_mode,
    put_back,
)
from nantrap.locate.twoline.caller import ended_by
from nantrap.locate.variables.handled import handled_where
from nantrap.locate.variables.provenance import Link, bad_in_block, trace_given
from nantrap.report import write_line

_MOST_DIAGNOSED = 3
"""Bad calls of one kind that are run again; further ones are counted."""
_NOT_AGAIN = "run again, the call is finite: it reads something that is not as it was, or a value changed once"
_STEP = re.compile(r"\bthe step\b")
_NOT_OF_VALUES = (MemoryError, torch.OutOfMemoryError, NantrapError, TypeError, NameError, AttributeError)
"""What no value of a tensor leads to."""
_DEEPEST, _LONGEST = 4, 64
_READ_EVERY = 16
"""On a device: so many calls are read together."""
_READ_FIRST = 8
_READ_ALONE = 64
"""On a device: the first calls are read one by one, and so many after a bad value: the next bad one is run again."""


class Evaluations:
    """Watches the calls of a model without gradients. Holds the call that is being made, and what was found so far.

    Args:
        session: gives the session of the run, when something is to be recorded; `None` if there can be none.
        during: what the calls are a part of.
        of_guard: says that the guard is at work meanwhile.
    """

    def __init__(
        self,
        session: Callable[[nn.Module], Session | None],
        during: During,
        *,
        of_guard: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self.calls = self._looked = self._inside = 0
        """Calls since the run began."""
        self.handled: Counter[str] = Counter()
        """Calls whose NaN the program handles itself, by where it does."""
        self._session = session
        self._during = during
        self._of_guard = of_guard
        self._call: RootCall | None = None
        self._raised: RootCall | None = None
        self._bad: tuple[Session, int] | None = None  # after this step a model gave something bad
        self._last: weakref.ref[nn.Module] | None = None
        self._held: Held = ()
        self._seen: Counter[Any] = Counter()
        self._unwritten: dict[tuple[Any, ...], tuple[Incident, int]] = {}
        self._on_device: Tensor | None = None
        self._unread = 0
        self._first_unread = 0
        self._handled_there = ""
        self._alone = _READ_FIRST

    @property
    def is_running(self) -> bool:
        """Whether a call without gradients is being made."""
        return self._call is not None

    @property
    def _is_told(self) -> bool:
        """Whether a model gave something bad since the last step: what follows from it is known."""
        return self._bad is not None and self._bad[0].progress.step == self._bad[1]

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model, or a part of it, is called without gradients."""
        running = self._call
        if running is not None and running.module is not module and any(m is module for m in running.module.modules()):  # type: ignore[union-attr]
            return  # inside the call that is being made
        autocast = autocast_state() if is_any_autocast_on() else None
        self._call = call = RootCall(args, kwargs, RngState.capture(), autocast, module)
        self._held = held_by(call)
        self._raised = None

    def end(self, module: nn.Module, output: Any) -> None:
        """The call has ended: is what it gave finite?"""
        call = self._call
        if call is None or call.module is not module:
            return
        self._call = None
        held, self._held = self._held, ()
        self._last = weakref.ref(module)
        call.running = False
        self.calls += 1
        self._judge(call, output, held)

    def around(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> RootCall | None:
        """A function of the program that switches gradients off is called, such as a method that samples: what is
        needed to run it again; `None` where that could have side effects."""
        if not all(_is_plain(each) for each in (*args, *kwargs.values())):
            return None
        autocast = autocast_state() if is_any_autocast_on() else None
        if args and isinstance(args[0], nn.Module):
            function, args = partial(function, args[0]), args[1:]
        return RootCall(args, kwargs, RngState.capture(), autocast, running=False, function=function)

    def end_around(self, call: RootCall, output: Any, *, calls: int, raised: bool = False) -> None:
        """The function has ended, in which models were called so often: is what it made of that finite?"""
        self._inside = calls
        call.module = None if self._last is None or self._is_told else self._last()
        if call.module is not None and raised:
            self._raised = self._raised or call
        elif call.module is not None:
            self._judge(call, output, ())

    def _judge(self, call: RootCall, output: Any, held: Held) -> None:
        """Report a call that gave something bad."""
        flag = flag_of(output)
        if flag is None:
            return
        if not (flag.is_cpu or self._alone):
            self._add(flag)
            return
        self._alone = max(0, self._alone - 1)
        if not math.isfinite(finite.value_of(flag)) and (bad := bad_output(output)) is not None:
            self._last = None  # what follows from this value is known
            self._alone = _READ_ALONE
            self._note(call, bad, held)

    def explain(self, error: BaseException) -> Incident | None:
        """An exception ended the call that is being made: report the non-finite value that led to it, if one did."""
        call, self._call, self._raised = self._call or self._raised, None, None
        if call is None or active_replays or not isinstance(error, Exception) or isinstance(error, MemoryError):
            return None
        with self._of_guard(), outside_inference_mode(), _harmless():
            session = None if call.module is None else self._session(call.module)
            return None if session is None else self._report(session, call, None, self._held, error=error)

    def explain_line(self, error: BaseException) -> Incident | None:
        """An exception ended the program outside of any call: report the non-finite value that the line was given
        which raised it, if it was given one. `torch.multinomial` refuses what a temperature of 0 made."""
        if active_replays or isinstance(error, _NOT_OF_VALUES) or not isinstance(error, Exception):
            return None
        with self._of_guard(), outside_inference_mode(), _harmless(), ended_by(error):
            return self._explain_variable(trace_given(), error)

    def end_block(self) -> None:
        """A block of the program without gradients has ended: is what it made of what the models gave finite?"""
        looked, self._looked = self._looked, self.calls
        if looked == self.calls or self._is_told:
            return
        with self._of_guard(), outside_inference_mode(), _harmless():
            if (links := bad_in_block()) and not handled_where():
                self._seen[links[-1].words] += 1
                if self._seen[links[-1].words] <= _MOST_DIAGNOSED:
                    self._explain_variable(links, None)

    def _explain_variable(self, links: Sequence[Link], error: Exception | None) -> Incident | None:
        """Report a variable of the program that is not finite, with the way back from it."""
        module = None if self._last is None else self._last()
        session = self._session(module) if links and module is not None else None
        if session is None or module is None:
            return None
        held = f"{links[-1].value.path} ({links[-1].value.described})"
        note = f"the block without gradients left {held}"
        if error is not None:
            said = (str(error).strip().splitlines() or [""])[0]
            note = f"{type(error).__name__}: {said}; the line that raised it was given {held}"
        place = Location("forward", beside=(links[0].value.path, links[0].words))
        incident = replace(
            new_incident(session, "forward"),
            during=self._during,
            action=Action.APPLY,
            lr=(),
            provenance=tuple(link.words for link in links),
            notes=(note,),
        )
        budget = budget_of(session)
        call = RootCall((), {}, RngState.capture(), None, module)
        failure = self._failure(session, call, None, ())
        diagnosed, _ = explained(session, failure, place, Diagnosed(incident, worth_a_bundle=True), budget)
        diagnosed = with_statement(session, failure, diagnosed, links[0], budget)
        diagnosed = diagnosed.with_incident(replace(_of_call(diagnosed.incident), module=None))
        return session.recorder.note_evaluation(diagnosed, raised=error is not None)

    def close(self) -> None:
        """Write what was only counted."""
        self._read()
        waiting, self._unwritten = self._unwritten, {}
        for key, (incident, times) in waiting.items():
            session = self._session(key[0])
            if session is not None:
                session.recorder.note_repeated(incident, times)

    def lines(self) -> list[str]:
        """What the summary says of NaN that the program handles."""
        return [
            f"{counted(number, 'call')} of the model gave NaN that the program handles ({where}): no incident"
            for where, number in self.handled.items()
        ]

    # ---- on a device

    def _add(self, flag: Tensor) -> None:
        """Add a flag to those that were not read yet."""
        if not self._unread:
            self._first_unread, self._handled_there = self.calls, handled_where()
        self._on_device = flag if self._on_device is None else self._on_device + flag
        self._unread += 1
        if self._unread >= _READ_EVERY:
            self._read()

    def _read(self) -> None:
        """Read the flags that were added up."""
        flag, self._on_device = self._on_device, None
        number, self._unread = self._unread, 0
        if flag is None:
            return
        value = finite.value_of(flag)
        if math.isnan(value) or value == math.inf:
            with self._of_guard():
                self._report_some(self._first_unread, number)

    def _report_some(self, first: int, number: int) -> None:
        """Some calls on a device gave a bad value: which ones is not known any more."""
        if self._handled_there:
            self.handled[self._handled_there] += 1
            return
        module = None if self._last is None else self._last()
        session = None if module is None else self._session(module)
        if session is None:
            return
        self._alone = _READ_ALONE
        calls = f"call {first:,}" if number == 1 else f"one of the calls {first:,} to {first + number - 1:,}"
        session.recorder.say(
            f"{self._during}: {calls} of the model gave a value that is not finite; the next {_READ_ALONE} calls are "
            "read one by one"
        )

    # ---- a bad call

    def _note(self, call: RootCall, bad: BadOutput, held: Held) -> None:
        """A call gave NaN or Inf: is it reported, run again, or only counted? Never raises."""
        with self._of_guard(), outside_inference_mode(), _harmless():
            if where := handled_where():
                self.handled[where] += 1
                return
            session = None if call.module is None else self._session(call.module)
            if session is None:
                return
            self._bad = session, session.progress.step
            key = (call.module, _name_of(call), bad.path, bad.nan)
            self._seen[key] += 1
            if self._seen[key] <= _MOST_DIAGNOSED:
                incident = self._report(session, call, bad, held)
                if incident is None:
                    return
                self._unwritten[key] = incident, 0
            elif key in self._unwritten:
                incident, times = self._unwritten[key]
                self._unwritten[key] = incident, times + 1
            else:
                return
            if session.setup.neighbours is not None:
                session.setup.neighbours.note_call(type(call.module).__name__, incident)

    def _report(
        self, session: Session, call: RootCall, bad: BadOutput | None, held: Held, *, error: Exception | None = None
    ) -> Incident | None:
        """Run the call again, record what it shows; `None` for a value that the program means."""
        now = held_by(call)
        try:
            diagnosed = self._diagnosed(session, call, bad, held)
        finally:
            put_back(now)
        if diagnosed is None:
            return None
        if error is not None:
            said = (str(error).strip().splitlines() or [""])[0]
            diagnosed = diagnosed.noting_first(f"the call ended with {type(error).__name__}: {said}")
        return session.recorder.note_evaluation(diagnosed, raised=error is not None)

    def _diagnosed(self, session: Session, call: RootCall, bad: BadOutput | None, held: Held) -> Diagnosed | None:
        """The incident of a call; `None` if nothing in it made the value but the program itself."""
        neighbours = session.setup.neighbours
        number = None if neighbours is None else neighbours.place(call)
        found = () if bad is None else (finding("output", bad.path, bad.tensor, "forward"),)
        incident = replace(
            new_incident(session, "forward"),
            during=self._during,
            action=Action.APPLY,
            epoch=session.progress.epoch if self._during == "evaluation" else None,
            batch=number,
            lr=(),
            findings=found,
            notes=(self._which(call), *_position(call, bad)),
        )
        diagnosed = Diagnosed(incident, worth_a_bundle=True)
        words = session.earlier.too_long(session.policy.diagnosis)
        if words or session.policy.diagnose == "off" or not session.alone.possible:
            return diagnosed.noting(words) if words else diagnosed
        failure = self._failure(session, call, bad, held)
        clock = session.policy.diagnosis.clock
        began, budget = clock(), budget_of(session)
        with session.protected.ledger.uncounted():
            failure, location = locate(failure, budget=budget)
            if _is_meant(location) or (bad is None and not _has_origin(location)):
                return None
            incident = with_location(incident, location)
            if neighbours is not None:
                micro = Micro(Loss(torch.full((), math.nan), {}), root_call=call, values=[])
                named = neighbours.name_samples(incident, micro)
                incident = replace(named, epoch=incident.epoch, batch=incident.batch)
            if location.replay is not None and not location.replay.failed:
                return diagnosed.with_incident(replace(incident, notes=(*incident.notes, _NOT_AGAIN)))
            diagnosed, _ = explained(session, failure, location, diagnosed.with_incident(incident), budget)
            diagnosed = with_provenance(session, failure, location, diagnosed, budget)
        session.earlier.took += clock() - began
        return diagnosed.with_incident(_of_call(diagnosed.incident))

    def _which(self, call: RootCall) -> str:
        """Which call it was, in words."""
        if name := _name_of(call):
            return f"{name} made it after {counted(self._inside, 'call')} of the model, which gave nothing bad"
        return f"it was call {self.calls:,} of the model without gradients"

    def _failure(self, session: Session, call: RootCall, bad: BadOutput | None, held: Held) -> Failure:
        """The call as a failure that can be run again. Runs nothing."""
        protected = session.protected
        return failure_of_call(
            call,
            bad,
            step=session.progress.step,
            during=self._during,
            root=protected.root,
            parameters=dict(protected.members.known()),
            optimizer=protected.optimizer,
            held=held,
            quiet=session.alone.running,
            run=run_facts(session),
        )


@contextlib.contextmanager
def _harmless() -> Iterator[None]:
    """What goes wrong in a diagnosis is printed, and the run goes on."""
    try:
        yield
    except Exception as error:
        write_line(escaped(f"nantrap: an evaluation could not be diagnosed: {type(error).__name__}: {error}", most=500))


def _of_call(incident: Incident) -> Incident:
    """The incident in which the rules speak of the call that was run again, and not of a step."""
    return replace(
        incident, causes=tuple(map(_cause_of_call, incident.causes)), notes=tuple(map(_said, incident.notes))
    )


def _cause_of_call(cause: Cause) -> Cause:
    evidence = tuple(replace(each, text=_said(each.text)) for each in cause.evidence)
    fix = None if cause.fix is None else replace(cause.fix, of="call")
    return replace(cause, summary=_said(cause.summary), evidence=evidence, fix=fix)


def _said(text: str) -> str:
    return _STEP.sub("the call", text.replace("before the first step", "before this call"))


def _has_origin(location: Location) -> bool:
    """Whether it is known what made the value."""
    return location.op is not None or location.external is not None


def _is_meant(location: Location) -> bool:
    """Whether the replay failed and only a constant of the program is behind it: an Inf table, NaN where data lack."""
    replay = location.replay
    if replay is None or replay.error is not None:
        return False
    constant = location.constant is not None or (location.external is not None and location.external.kind == "constant")
    return constant or (replay.failed and not replay.candidates and location.external is None)


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether a value is an argument of a computation, and not something that gives others, such as a loader."""
    if isinstance(value, (list, tuple, dict)):
        inner = value.values() if isinstance(value, dict) else value
        return depth < _DEEPEST and len(value) <= _LONGEST and all(_is_plain(each, depth + 1) for each in inner)
    return value is None or isinstance(value, (Tensor, nn.Module, bool, int, float, str, torch.dtype, torch.device))


def _name_of(call: RootCall) -> str:
    """The function of the program that was called in place of a module; empty for a module."""
    inner = call.function.func if isinstance(call.function, partial) else call.function
    return "" if inner is None else inner.__qualname__


def _position(call: RootCall, bad: BadOutput | None) -> tuple[str, ...]:
    """The first bad place in words: the sample, the position in its sequence, and where a generation is."""
    index = None if bad is None else finite.first_nonfinite_index(bad.tensor)
    if index is None or len(index) < 2 or bad is None:
        return ()
    words = f"the first bad value of {bad.path} is at [{', '.join(map(str, index))}]: sample {index[0]}"
    if len(index) == 3:
        begun = call.kwargs.get("cache_position")
        begun = call.kwargs.get("position_ids") if begun is None else begun
        words += f", position {index[1]}"
        if isinstance(begun, Tensor) and begun.numel() and begun.shape[-1] > index[1]:
            words += f" of this call, position {int(begun.reshape(-1, begun.shape[-1])[0, index[1]])} of the sequence"
    return (words,)
