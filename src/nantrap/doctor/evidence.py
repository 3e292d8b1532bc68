"""What makes a finding certain, and what speaks against it: `judged` decides the risk that is printed.

A check says what its code is worth where it is certain ("high"), and in `Sighting.doubt` what it could not see. The
rest is asked here, the same of every check: does a run start this file, does it call this code, did the author mean it.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from typing import Final

from nantrap.doctor.checks.registry import Sighting
from nantrap.doctor.report import Risk
from nantrap.doctor.repository import Repository
from nantrap.doctor.source.module import Module

_LOWER: Final[dict[Risk, Risk]] = {"high": "medium", "medium": "low", "low": "low"}
_TRAINS_NOTHING: Final = re.compile(
    r"(^|_)(test_suite|debug\w*|demo|eval\w*|infer\w*|predict\w*|export\w*|plot\w*|visuali\w*|profil\w*|bench\w*|sanity|smoke|"
    r"diagnos\w*|inspect\w*|verify|tests?|onnx|convert\w*|figures?|metrics?(?!_learning)|analy[sz]\w*|results?|outputs?|logs?|"
    r"archived?|deprecated|old|backups?|bak|third_?party|vendor\w*|external|unused|docs?)(_|\d|$)"
)
"""Words of files and folders that no training run starts: they evaluate, show, measure, or were kept."""
_TRAINS: Final = re.compile(r"train|tun(e|ing)|learn|distill")
_MEASURES: Final = re.compile(r"(^|_)(test_suite|bench\w*|profil\w*|smoke|sanity)(_|\d|$)")
"""Words of files that run a few steps to try or measure something, though they may speak of training too."""
_GIVEN_DATA: Final = re.compile(
    r"(^|_)(data(set|sets|loader|loaders|module|modules)?|pre_?process\w*|augment\w*|transforms?|extract\w*|prepare\w*)(_|\d|$)"
)
"""Words of files and folders that work on given data, through which no gradient passes."""
_MEANT: Final = re.compile(r"(?i)on purpose|intention|deliberate|by design|as intended|full precision|disable")
_OF_GRADIENTS: Final = frozenset({"NT852", "NT854", "NT860", "NT861", "NT862", "NT863", "NT868", "NT870"})
"""Checks of values: they harm only where a gradient passes."""
_OF_TRAINING: Final = frozenset({"backward", "manual_backward", "fit", "training_step", "Trainer"})
_NAMES: Final = re.compile(r"[A-Za-z_]\w*")
_WORDS: Final = re.compile(r"[a-z0-9]+")


def judged(found: Sighting, code: str, file: str, module: Module | None, repository: Repository) -> tuple[Risk, str]:
    """The risk and the words that a finding is printed with.

    The principle: a finding has the risk of its check only if all that the check needs for certainty is seen in this
    project. What speaks against it lowers it by one step, high to medium and medium to low, and is said in the message:

    - what the check itself could not see (`Sighting.doubt`): that a gradient passes, that the domain is left, that the
      value is the one which is used, that the optimizer and the network are of the kind the rule is about;
    - the file is none that a run starts: it evaluates, exports, plots, debugs, or holds results;
    - for checks of values, the file prepares given data;
    - the project has a training loop, and nothing that was read leads from it, or from any script, to this code;
    - a comment at the line says that it is meant.

    A file that was read alone is taken at its word: nothing was read that could speak against it.
    """
    risk = found.risk or "low"
    if risk == "low":
        return risk, found.message
    place = found.file or file
    module = module or next((each for each in repository.modules if each.file == place), None)
    doubt = found.doubt or _aside(place, code, repository)
    if not doubt and module is not None:
        doubt = _meant(module, found.line) or _unreached(module, found.line, code, repository)
    return (_LOWER[risk], f"{found.message} ({doubt})") if doubt else (risk, found.message)


def _aside(file: str, code: str, repository: Repository) -> str:
    """Words for a file that trains nothing, by its name and its folders."""
    if _says(_TRAINS_NOTHING, file, repository):
        return "its name says that this file trains nothing"
    if code in _OF_GRADIENTS and _says(_GIVEN_DATA, file, repository):
        return "its name says that this file prepares given data"
    return ""


def _says(words: re.Pattern[str], file: str, repository: Repository) -> bool:
    """Whether a file or a folder around it has such a name, and none that speaks of training: `train_eval.py`."""
    parts = map(_plain, repository.inside(file))
    return any(words.search(part) and (not _TRAINS.search(part) or _MEASURES.search(part)) for part in parts)


def _plain(part: str) -> str:
    """`evalUtils-v2.py` as `eval_utils_v2`."""
    stem = os.path.splitext(part)[0]
    return "_".join(_WORDS.findall(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", stem).lower()))


def _meant(module: Module, line: int) -> str:
    """Words for a line whose comment, there or alone on the line above, says that it is on purpose."""
    for at in (line, line - 1):
        text = module.lines[at - 1] if 0 < at <= len(module.lines) else ""
        code, mark, comment = text.partition("#")
        if mark and (at == line or not code.strip()) and _MEANT.search(comment):
            return "a comment says that it is meant"
    return ""


def _unreached(module: Module, line: int, code: str, repository: Repository) -> str:
    """Words for code that no script leads to, though the project has scripts that train."""
    owner = _definition_around(module, line)
    if len(repository.modules) < 2 or not owner:
        return ""
    reached, trains = _reached(repository, data=code not in _OF_GRADIENTS)
    return "no run was seen to call it" if trains and owner not in reached else ""


def _definition_around(module: Module, line: int) -> str:
    """The name of the function or class at the top of the file that a line is in."""
    for node in _definitions(module):
        if node.lineno <= line <= (node.end_lineno or node.lineno):
            return node.name
    return ""


def _definitions(module: Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    for node in module.tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node


def _reached(repository: Repository, *, data: bool) -> tuple[set[str], bool]:
    """The names of functions and classes that a script leads to, directly or through others, and whether one trains.

    By name alone: a name that two files define is reached in both. Definitions with a decorator and those whose names
    stand in a setting are reached too, because a registry may make them.

    Args:
        repository: all that was read.
        data: whether a way through files that prepare data counts.
    """
    key = f"reached {data}"
    if key not in repository.kept:
        used: dict[str, set[str]] = {}
        begun: set[str] = set()
        for source in repository.sources:
            for setting in source.settings:
                if isinstance(setting.value, str):
                    begun |= set(_NAMES.findall(setting.value))
        for file, text in repository.others.items():
            if not _says(_TRAINS_NOTHING, file, repository):
                begun |= _names_of(text.splitlines())
        for module in repository.modules:
            if _says(_TRAINS_NOTHING, module.file, repository):
                continue
            if not data and _says(_GIVEN_DATA, module.file, repository):
                continue
            rest = 0
            for node in _definitions(module):
                begun |= _names_of(module.lines[rest : node.lineno - 1])
                rest = node.end_lineno or node.lineno
                used.setdefault(node.name, set()).update(_names_of(module.lines[node.lineno : rest]))
                if node.decorator_list:
                    begun.add(node.name)
            if not module.is_demonstration:
                begun |= _names_of(module.lines[rest:])
        reached: set[str] = set()
        waiting = [name for name in begun if name in used]
        while waiting:
            name = waiting.pop()
            if name not in reached:
                reached.add(name)
                waiting += [other for other in used[name] if other in used and other not in reached]
        trains = any(not _OF_TRAINING.isdisjoint(names) for names in (begun, *(used[name] for name in reached)))
        repository.kept[key] = reached, trains
    found: tuple[set[str], bool] = repository.kept[key]
    return found


def _names_of(lines: list[str]) -> set[str]:
    """The names in some lines of code, without imports, comments and lists of what a file exports."""
    found: set[str] = set()
    inside = False
    for line in lines:
        text = line.partition("#")[0].strip()
        if inside or text.startswith(("import ", "from ", "__all__")):
            inside = ")" not in text and "]" not in text and (inside or text.endswith(("(", "[", ",", "\\")))
            continue
        found.update(_NAMES.findall(text))
    return found
