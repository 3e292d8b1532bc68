"""How well failures are explained: place, best cause, proofs, verified fixes, containment, seconds.

    python benchmarks/explain.py [NAME ...] [--to-the-end] [--lines FILE]

A name is a family of causes, `controls`, a collection or a program of the zoo (see zoo/README.md); by default the
families, the controls and the collection that is held back. Every program knows its own answer. All but those held back
were looked at while rules were written or fixed, so the figures of the latter, and the first measurements in
zoo/manifest.json, are the honest ones. A false proof is a cause that is called proven and is not the true one, at any
rank: there must be none. A false sentence is one that the program's truth lists as false of it (`never_said`), found
anywhere in the incident.

`--to-the-end` runs each program on after its first incident and counts those whose state is finite at the end.
`--lines` writes one JSON line per program and form, with what was said.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import nantrap

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the zoo is beside the benchmarks
from zoo.loading import (
    CONTROLS,
    Case,
    batches,
    families,
    find,
    is_control,
    is_held_back,
    is_place,
    load,
    loss_function,
)

FORMS = ("attempt", "two lines")
HELD_BACK = "held_back"
_EITHER = {"bn_buffers_poisoned": {"bn_buffers_poisoned", "fp16_forward_overflow"}}
"""Two names for one fault: the buffer that was poisoned, and what poisoned it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one form said about one program, compared with the truth."""

    program: str
    form: str
    control: bool
    found: bool = False
    step: bool = False
    place: bool = False
    cause: bool = False
    among_three: bool = False
    proven: bool = False
    verified: bool = False
    false_proofs: tuple[str, ...] = ()
    false_sentences: tuple[str, ...] = ()
    contained: bool | None = None
    seconds: float = 0.0
    said: str = ""
    wanted: str = ""
    sentences: tuple[str, ...] = ()


@dataclass
class Tally:
    """What one form did over some programs of the zoo."""

    answers: list[Answer] = field(default_factory=list)

    @property
    def failures(self) -> list[Answer]:
        """The answers on programs that fail."""
        return [answer for answer in self.answers if not answer.control]

    @property
    def bugs(self) -> int:
        """How many programs fail."""
        return len(self.failures)

    @property
    def first(self) -> int:
        """How often the best cause is right."""
        return sum(answer.cause for answer in self.failures)

    @property
    def false_alarms(self) -> int:
        """How many healthy programs gave an incident."""
        return sum(answer.control and answer.found for answer in self.answers)

    @property
    def false_proofs(self) -> list[str]:
        """Causes that are called proven and are not the true one."""
        return [f"{answer.program}: {slug}" for answer in self.failures for slug in answer.false_proofs[:1]]

    @property
    def false_sentences(self) -> list[str]:
        """Sentences that the truth of their program calls false."""
        return [f"{answer.program}: {text!r}" for answer in self.failures for text in answer.false_sentences]

    @property
    def misses(self) -> list[str]:
        """What was said where place or cause is wrong."""
        missed = [answer for answer in self.failures if not (answer.place and answer.cause)]
        return [f"{a.program}: {a.said or 'nothing'}; wanted {a.wanted}" for a in missed]


def judge(path: Path, form: str, tally: Tally, *, to_the_end: bool = False) -> None:
    """Run one program up to its first incident, or to its end, and compare."""
    case = load(path)
    truth = case["truth"]
    compute = loss_function(case)
    bad_at_first = not state_is_finite(case)
    # no time passes by this clock: a busy machine must not change an answer
    policy = nantrap.Policy(diagnosis=nantrap.Diagnosis(seconds=600, clock=lambda: 0.0))
    guard = nantrap.Guard(case["model"], case["optimizer"], max_grad_norm=None, policy=policy, quiet=True)
    incident, at, took, crash = None, -1, 0.0, ""
    for step, batch in enumerate(batches(case)):
        begin = time.perf_counter()
        try:
            if form == "attempt":
                outcome = guard.attempt(compute, batch)
            else:
                guard.backward(compute(batch))
                outcome = guard.step()
        except Exception as error:
            crash = f"{type(error).__name__}: {str(error).splitlines()[0]}"
            break
        if incident is None and outcome.incident is not None:
            incident, at, took = outcome.incident, step, time.perf_counter() - begin
            if not to_the_end:
                break
    answer = Answer(path.stem, form, is_control(truth), found=incident is not None or bool(crash), said=crash)
    if to_the_end:
        answer = dataclasses.replace(answer, contained=not crash and (bad_at_first or state_is_finite(case)))
    if incident is not None:
        answer = compared(answer, incident, truth, at, took)
    tally.answers.append(answer)


def compared(answer: Answer, incident: nantrap.Incident, truth: dict[str, Any], step: int, took: float) -> Answer:
    """The answer with what the incident said, right or wrong."""
    accepted = {truth["cause"], *_EITHER.get(truth["cause"], ()), *truth.get("also", ())}
    slugs = [cause.slug for cause in incident.causes]
    right = bool(slugs) and slugs[0] in accepted
    said = tuple(sentences(incident))
    place = not answer.control and is_place(truth, incident.phase, incident.module, incident.op, incident.node)
    shown = ", ".join(f"{cause.slug}{' (proven)' * cause.proven}" for cause in incident.causes[:3])
    return dataclasses.replace(
        answer,
        step=step == truth.get("first_bad_step"),
        place=place and step == truth.get("first_bad_step"),
        cause=right,
        among_three=bool(accepted & set(slugs[:3])),
        proven=right and incident.causes[0].proven,
        verified=bool(incident.causes and incident.causes[0].fix is not None and incident.causes[0].fix.verified),
        false_proofs=tuple(cause.slug for cause in incident.causes if cause.proven and cause.slug not in accepted),
        false_sentences=tuple(text for text in truth.get("never_said", ()) if text in "\n".join(said)),
        seconds=took,
        said=f"step {step}, {incident.phase}, {incident.module}, {incident.op}: {shown}",
        wanted=f"step {truth.get('first_bad_step')}, {truth.get('phase')}, {truth.get('module') or 'loss'}, "
        f"{truth.get('op')}: {', '.join(sorted(map(str, accepted)))}",
        sentences=said,
    )


def sentences(incident: nantrap.Incident) -> Iterator[str]:
    """Every sentence of an incident that claims something about its cause."""
    yield from incident.notes
    for cause in incident.causes:
        yield cause.summary
        yield from (evidence.text for evidence in cause.evidence)
        if cause.fix is not None:
            yield cause.fix.words


def state_is_finite(case: Case) -> bool:
    """Whether the model and the optimizer's state hold finite values only."""
    tensors = [*case["model"].parameters(), *case["model"].buffers()]
    tensors += [value for entry in case["optimizer"].state.values() for value in entry.values()]
    floats = [t for t in tensors if isinstance(t, torch.Tensor) and t.is_floating_point()]
    return all(bool(t.isfinite().all()) for t in floats)


_HEADS = {
    "step": 8, "place": 8, "cause": 8, "of three": 10, "proven": 8, "false": 7, "untrue": 8, "verified": 10,
    "alarms": 8, "contained": 11, "median s": 10, "worst": 7,
}  # fmt: skip


def row(tally: Tally) -> list[str]:
    """The figures of one form, in the order of the heads."""
    failures, everything = tally.failures, tally.answers
    controls = [answer for answer in everything if answer.control]
    ended = [answer.contained for answer in everything if answer.contained is not None]
    seconds = [answer.seconds for answer in failures if answer.found] or [0.0]

    def count(name: str) -> str:
        return f"{sum(getattr(answer, name) for answer in failures)}/{len(failures)}"

    return [
        count("step"), count("place"), count("cause"), count("among_three"),
        count("proven").partition("/")[0], str(len(tally.false_proofs)), str(len(tally.false_sentences)),
        count("verified").partition("/")[0], f"{tally.false_alarms}/{len(controls)}",
        f"{sum(ended)}/{len(ended)}" if ended else "", f"{statistics.median(seconds):.3f}", f"{max(seconds):.2f}",
    ]  # fmt: skip


def measure(name: str, *, to_the_end: bool, lines: Path | None) -> None:
    """Both forms over one family or collection."""
    paths = find(name)
    name_misses = not any(map(is_held_back, paths))
    print(f"\n{name}: {len(paths)} programs")
    print(" " * 10 + "".join(f"{head:>{width}}" for head, width in _HEADS.items()))
    for form in FORMS:
        tally = Tally()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for path in paths:
                judge(path, form, tally, to_the_end=to_the_end)
        print(f"{form:10}" + "".join(f"{value:>{w}}" for value, w in zip(row(tally), _HEADS.values(), strict=True)))
        for title in ("false_proofs", "false_sentences", "misses") if name_misses else ():
            for line in getattr(tally, title):
                print(f"  {title.replace('_', ' ')}: {line}")
        if lines is not None:
            with lines.open("a") as file:
                file.writelines(json.dumps(dataclasses.asdict(answer)) + "\n" for answer in tally.answers)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="families, controls, collections or programs")
    parser.add_argument("--to-the-end", action="store_true", help="run on after the first incident")
    parser.add_argument("--lines", type=Path, help="append one JSON line per program and form")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.names or (*families(), CONTROLS, HELD_BACK):
        measure(name, to_the_end=arguments.to_the_end, lines=arguments.lines)


if __name__ == "__main__":
    main()
