"""Compares what a tool said with the truth of a program, and counts. Nothing here knows nantrap."""

from __future__ import annotations

import statistics
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from zoo.loading import is_control, is_place, is_script, is_step, module_of, operation_of_node
from zoo.running import Alarm, Run, ScriptRun, Tool

_EITHER = {"bn_buffers_poisoned": {"bn_buffers_poisoned", "fp16_forward_overflow"}}
"""Two names for one fault: the buffer that was poisoned, and what poisoned it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one tool did with one program, compared with the truth.

    `place` is right as far as a place was named, `full_place` if phase, module and operation were named and are right;
    both are `None` for a whole script. `line` is `None` where the truth names no line, `finite` where the run was not
    made to the end.
    """

    program: str
    tool: str
    control: bool
    found: bool = False
    step: bool = False
    place: bool | None = False
    full_place: bool | None = False
    line: bool | None = None
    cause: bool = False
    among_three: bool = False
    proven: bool = False
    verified: bool = False
    false_proofs: tuple[str, ...] = ()
    false_sentences: tuple[str, ...] = ()
    finite: bool | None = None
    all_steps: bool | None = None
    raised: str = ""
    seconds: float | None = None
    said: str = ""
    wanted: str = ""
    sentences: tuple[str, ...] = ()


def measure(tool: Tool, path: Path, *, to_the_end: bool = False) -> Answer:
    """Let a tool train a program in this process, up to its first alarm or to the end, and compare.

    A whole script always runs to its end.
    """
    run: Run | ScriptRun
    run, raised = ScriptRun(path) if is_script(path) else Run(path, to_the_end=to_the_end), ""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if isinstance(run, ScriptRun):
                tool.run_script(run)  # type: ignore[attr-defined]
            else:
                tool.train(run)
        except Exception as error:
            raised = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    if isinstance(run, Run) and run.ended == float("inf"):  # the tool left the loop in the middle of a step
        run.ended = [*run.begins, *run.told][-1]
    return answer_of(run, tool, raised)


def answer_of(run: Run | ScriptRun, tool: Tool, raised: str = "") -> Answer:
    """What the tool said of the run first, right or wrong, and how the run ended."""
    truth = run.truth()
    failed = truth.get("first_bad_step")
    values: dict[str, Any] = {"raised": raised, "said": raised, "line": None if truth.get("line") is None else False}
    if run.to_the_end:
        values |= {"all_steps": not raised and run.is_whole(), "finite": run.is_finite()}
    if run.alarms:
        step, alarm = run.alarms[0]
        values |= _compared(alarm, step, truth)
        if isinstance(run, Run) and failed is not None and step >= failed:
            values["seconds"] = run.seconds_to_answer(failed)
    if isinstance(run, ScriptRun):
        values |= {"place": None, "full_place": None}
    control = is_control(truth)
    return Answer(run.path.stem, tool.name, control, found=bool(run.alarms), **values)


def _compared(alarm: Alarm, step: int, truth: dict[str, Any]) -> dict[str, Any]:
    accepted = {truth["cause"], *_EITHER.get(truth["cause"], ()), *truth.get("also", ())}
    slugs = [cause.slug for cause in alarm.causes]
    right, right_step = bool(slugs) and slugs[0] in accepted, is_step(truth, step)
    place = not is_control(truth) and right_step
    shown = ", ".join(f"{cause.slug}{' (proven)' * cause.proven}" for cause in alarm.causes[:3])
    lines = [text for text in (truth.get("line"), *truth.get("also_line", ())) if text]
    return {
        "step": right_step,
        "place": place and is_place_as_named(truth, alarm),
        "full_place": place and is_place(truth, alarm.phase, alarm.module, alarm.op, alarm.node),
        "line": any(text in (alarm.line or "") for text in lines) if lines else None,
        "cause": right,
        "among_three": bool(accepted & set(slugs[:3])),
        "proven": right and alarm.causes[0].proven,
        "verified": bool(alarm.causes) and alarm.causes[0].verified,
        "false_proofs": tuple(c.slug for c in alarm.causes if c.proven and c.slug not in accepted),
        "false_sentences": tuple(
            text for text in truth.get("never_said", ()) if text in "\n".join(alarm.sentences)
        ),
        "said": f"step {step}, {alarm.phase}, {alarm.module}, {alarm.op or alarm.node}: {shown}",
        "wanted": f"step {truth.get('first_bad_step')}, {truth.get('phase')}, {truth.get('module') or 'loss'}, "
        f"{truth.get('op')}: {', '.join(sorted(map(str, accepted)))}",
        "sentences": alarm.sentences,
    }  # fmt: skip


def is_place_as_named(truth: dict[str, Any], alarm: Alarm) -> bool:
    """Whether what a tool names of the place is right; it has to name a module, an operation or a node.

    A node is right if its operation is, and any node is accepted where the truth is an operation inside a node.
    """
    if alarm.module is None and alarm.op is None and alarm.node is None:
        return False
    op = alarm.op
    if op is None:
        node = operation_of_node(alarm.node) if alarm.node and truth["phase"] != "backward" else None
        op = f"aten.{node}" if node else truth["op"] if alarm.node is None or truth["phase"] == "backward" else None
    return is_place(truth, alarm.phase or truth["phase"], alarm.module or module_of(truth), op, alarm.node)


@dataclass
class Tally:
    """What one tool did over some programs."""

    answers: list[Answer] = field(default_factory=list)

    @property
    def failures(self) -> list[Answer]:
        """The answers on programs that fail."""
        return [answer for answer in self.answers if not answer.control]

    @property
    def controls(self) -> list[Answer]:
        """The answers on healthy programs."""
        return [answer for answer in self.answers if answer.control]

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
        """How many healthy programs gave an alarm, or were ended by an error."""
        return sum(answer.found or bool(answer.raised) for answer in self.controls)

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
        """What was said where place (of a script: step) or cause is wrong."""
        missed = [a for a in self.failures if not (a.cause and (a.step if a.place is None else a.place))]
        return [f"{a.program}: {a.said or 'nothing'}" + (f"; wanted {a.wanted}" if a.wanted else "") for a in missed]

    def counts(self) -> dict[str, Any]:
        """The figures of the tables."""
        failures, controls = self.failures, self.controls
        lines = [answer for answer in failures if answer.line is not None]
        ended = [answer for answer in self.answers if answer.finite is not None]
        seconds = [answer.seconds for answer in failures if answer.seconds is not None]

        def number(name: str) -> int:
            return sum(bool(getattr(answer, name)) for answer in failures)

        found: dict[str, Any] = {
            "programs": len(failures), "found": number("found"), "step": number("step"), "place": number("place"),
            "full_place": number("full_place"), "lines": len(lines), "line": sum(bool(a.line) for a in lines),
            "cause": number("cause"), "among_three": number("among_three"), "proven": number("proven"),
            "false_proofs": len(self.false_proofs), "false_sentences": len(self.false_sentences),
            "verified_fixes": number("verified"), "controls": len(controls), "false_alarms": self.false_alarms,
            "ended": len(ended), "finite_at_the_end": sum(bool(a.finite) for a in ended),
            "usable_at_the_end": sum(bool(a.finite and a.all_steps) for a in ended),
            "raised": number("raised"),
        }  # fmt: skip
        if seconds:
            found |= {"median_seconds": round(statistics.median(seconds), 4), "worst_seconds": round(max(seconds), 2)}
        return found
