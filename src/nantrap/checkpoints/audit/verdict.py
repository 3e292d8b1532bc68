"""The result of an audit. Frozen data, no torch: results are sent between ranks and written as JSON.

CheckpointProblem  one thing that is wrong with a checkpoint, with a stable code
CheckpointAudit    one checkpoint: format, size, facts, problems
AuditReport        everything one call checked, and the last good checkpoint
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from nantrap.problems import Problem, ProblemPlace, Severity

Role = Literal["model", "optimizer", "scheduler", "scaler", "ema", "rng", "callbacks", "data", "other"]

SCHEMA: Final = "nantrap.audit/1"

TITLES: Final[Mapping[str, str]] = {
    "NT901": "NaN in a checkpoint",
    "NT902": "Inf in a checkpoint",
    "NT903": "a magnitude that is absurd for its dtype",
    "NT904": "a negative second moment or variance",
    "NT905": "a weight that is zero or constant everywhere",
    "NT906": "a mix of dtypes that do not belong together",
    "NT907": "a missing or unexpected shard",
    "NT908": "damaged bytes",
    "NT909": "a truncated file",
    "NT910": "a pickle that wants to import more than data",
    "NT911": "not a checkpoint",
    "NT912": "could not be read",
    "NT913": "loading would make known code use functions or objects of the file",
}

HELP: Final[Mapping[str, str]] = {
    "NT901": "do not resume from it; take the last good checkpoint",
    "NT902": "do not resume from it; take the last good checkpoint",
    "NT903": "check the tensor: a flipped bit, uninitialised memory or a run that had already diverged",
    "NT904": "the optimizer would take the root of a negative number; reset that state or take an older checkpoint",
    "NT905": "normal for layers that start at zero, as LoRA B does; else the layer was never trained or loaded",
    "NT906": "save all weights in one dtype, or keep float32 together with exactly one half precision",
    "NT907": "copy the missing file, or save the checkpoint again; remove files of an older save",
    "NT908": "copy the file again from where it came, or take the last good checkpoint",
    "NT909": "the save was cut short or is not finished yet; take the last good checkpoint, or audit again later",
    "NT910": "do not load it with weights_only=False unless you trust who wrote it",
    "NT911": "give the path of a checkpoint: torch, Lightning, safetensors, DCP, or a folder of these",
    "NT912": "make the file readable for this user, then audit again",
    "NT913": "load the file only if you trust who wrote it; safetensors needs no code",
}


@dataclass(frozen=True, slots=True)
class CheckpointProblem(Problem):
    """One thing that is wrong. An `error` makes the checkpoint unhealthy, a `warning` or a `note` does not."""

    role: Role | None = None
    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    first_index: tuple[int, ...] | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    imports: tuple[str, ...] = ()

    @property
    def tensor(self) -> str | None:
        """The tensor that it is about, if it is about one."""
        return self.place.tensor

    @property
    def file(self) -> str | None:
        """The file of the checkpoint that it is in, if there are several."""
        return self.place.file or None

    def to_dict(self) -> dict[str, Any]:
        """The problem as plain JSON values. `code`, `tensor`, `nan` and `inf` are always there."""
        data: dict[str, Any] = {
            "code": self.code,
            "severity": self.severity,
            "tensor": self.tensor,
            "nan": self.nan,
            "inf": self.posinf + self.neginf,
            "message": self.message,
            "help": self.help,
        }
        if self.posinf or self.neginf:
            data |= {"posinf": self.posinf, "neginf": self.neginf}
        for key in ("role", "file", "dtype"):
            if getattr(self, key) is not None:
                data[key] = getattr(self, key)
        for key in ("first_index", "shape"):
            if getattr(self, key) is not None:
                data[key] = list(getattr(self, key))
        if self.imports:
            data["imports"] = list(self.imports)
        return data


def checkpoint_problem(
    code: str,
    message: str,
    *,
    severity: Severity = "error",
    tensor: str | None = None,
    role: Role | None = None,
    file: str = "",
    **found: Any,
) -> CheckpointProblem:
    """A problem with the title and the help of its code; `found` are the other fields of a `CheckpointProblem`."""
    fix, place = _help(code, severity, role), ProblemPlace(file, tensor=tensor)
    return CheckpointProblem(code, severity, message, fix, place=place, title=TITLES[code], role=role, **found)


def _help(code: str, severity: Severity, role: Role | None) -> str:
    """What to do about a problem with this code."""
    if code in ("NT901", "NT902"):
        if severity == "warning":
            return "nothing to do if it was put there on purpose, as a mask or a score is"
        if role in ("data", "other"):
            return "find the samples that hold it and drop or repair them; nantrap data names the rows"
    if code == "NT910" and severity == "warning":
        return "weights_only=True refuses it; load it with weights_only=False only if you trust who wrote it"
    if code == "NT910" and severity == "note":
        return "nothing to do"
    if code == "NT912" and severity == "warning":
        return "open it with the program that wrote it"
    return HELP[code]


@dataclass(frozen=True, slots=True)
class CheckpointAudit:
    """One checkpoint. `facts` holds what it stores about itself: step, epoch, learning rate, loss scale.

    `holds_model`: weights are in it. A run cannot be resumed from a file of random states or of data alone.
    `holds_optimizer`: an optimizer's state is in it, so that a run goes on as it was.
    """

    path: str
    format: str
    tensors: int
    bytes: int
    problems: tuple[CheckpointProblem, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    holds_model: bool = True
    holds_optimizer: bool = False

    @property
    def healthy(self) -> bool:
        """Whether nothing worse than a warning was found."""
        return all(problem.severity != "error" for problem in self.problems)

    @property
    def verdict(self) -> Literal["ok", "ask", "bad"]:
        """`bad` with an error; `ask` if loading it would run code that is not known; else `ok`."""
        if not self.healthy:
            return "bad"
        return "ask" if self.runs_unknown_code or self.needs_other_code else "ok"

    @property
    def runs_unknown_code(self) -> bool:
        """Whether loading it would make known code use functions or objects of the file."""
        return any(problem.code == "NT913" for problem in self.problems)

    @property
    def needs_other_code(self) -> bool:
        """Whether loading it needs classes or functions that nantrap does not know."""
        return any(problem.code == "NT910" and problem.severity == "warning" for problem in self.problems)

    def to_dict(self) -> dict[str, Any]:
        """The audit of this checkpoint as plain JSON values."""
        return {
            "path": self.path,
            "format": self.format,
            "healthy": self.healthy,
            "verdict": self.verdict,
            "holds_model": self.holds_model,
            "tensors": self.tensors,
            "bytes": self.bytes,
            "facts": dict(self.facts),
            "problems": [problem.to_dict() for problem in self.problems],
        }


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Everything one audit checked, oldest first where there is an order.

    `last_good` is the path of the newest healthy checkpoint that holds a model, and an optimizer where any does.
    `not_read` names the checkpoints that a bisection did not need to open. `hints` are sentences on the run as a whole,
    such as saves between which nothing was trained.
    """

    checkpoints: tuple[CheckpointAudit, ...]
    last_good: str | None = None
    not_read: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether every checkpoint that was read is healthy."""
        return all(checkpoint.healthy for checkpoint in self.checkpoints)

    @property
    def problems(self) -> tuple[CheckpointProblem, ...]:
        """All problems of all checkpoints."""
        return tuple(problem for checkpoint in self.checkpoints for problem in checkpoint.problems)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON values, with its schema."""
        return {
            "schema": SCHEMA,
            "checkpoints": [checkpoint.to_dict() for checkpoint in self.checkpoints],
            "last_good": self.last_good,
            "not_read": list(self.not_read),
            **({"hints": list(self.hints)} if self.hints else {}),
        }
