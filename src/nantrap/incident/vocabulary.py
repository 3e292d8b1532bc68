"""The vocabulary: what an incident is made of. Frozen, slotted, no torch.

TensorStats  what a tensor holds, in numbers
Source       a line of the user's code
Site         where: phase, module, operation, autograd node, source, rank
Finding      one observation: this tensor, here, holds non-finite values
Frame        one operation on the way to the origin, with its magnitude
Probe        a `nantrap.probe` point as it was in the failed step
Evidence     one reason to believe a cause
Fix          what to do, and whether a trial showed that it works
Cause        a diagnosis
Trial        a replay with exactly one thing changed
Magnitudes   how large the suspect was over the last steps
Incident     one failed step

Every class keeps the fields it does not know (written by a newer nantrap) in `extra`, so that an old reader never loses
what a newer version wrote.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

from nantrap.incident.codes import BY_SLUG
from nantrap.incident.redaction import without_secrets

Phase = Literal["data", "state", "forward", "backward", "optimizer"]
PHASES: tuple[Phase, ...] = ("data", "state", "forward", "backward", "optimizer")

During = Literal["training", "evaluation", "inference"]
"""What a bad value was a part of: a training step; a call without gradients of a model that an optimizer trains; or a
call of a model that none trains."""

Decider = Literal["nantrap", "script", "scaler", "exception"]
"""Who decided what became of a step: nantrap, the script, its gradient scaler, or an exception that goes on."""

FindingKind = Literal[
    "batch", "parameter", "buffer", "optimizer_state", "ema",
    "loss", "term", "activation", "gradient", "grad_norm", "spike", "watch", "output",
]  # fmt: skip


class Action(str, Enum):
    """What the guard did with the step. Compares equal to its plain string."""

    APPLY = "apply"
    SKIP = "skip"
    ROLLBACK = "rollback"
    STOP = "stop"

    def __str__(self) -> str:
        return self.value


def _nothing() -> Mapping[str, Any]:
    return {}


@dataclass(frozen=True, slots=True)
class TensorStats:
    """Exact statistics of one tensor. `min`, `max`, `mean` and `absmax` are of the finite part; `None` without one.

    `headroom_bits` is log2(dtype's largest value / absmax): how many doublings are left before overflow.
    """

    shape: tuple[int, ...]
    dtype: str
    numel: int
    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    zeros: int = 0
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    absmax: float | None = None
    headroom_bits: float | None = None
    extra: Mapping[str, Any] = field(default_factory=_nothing, repr=False)

    @property
    def nonfinite(self) -> int:
        """How many values are NaN, +Inf or -Inf."""
        return self.nan + self.posinf + self.neginf

    def describe(self) -> str:
        """What is wrong in a few words: `28 of 1,568 values are NaN`."""
        kinds = ((self.nan, "NaN"), (self.posinf, "+Inf"), (self.neginf, "-Inf"))
        parts = [f"{'is' if count == 1 else 'are'} {word}" for count, word in kinds if count]
        counts = [f"{count:,}" for count, _ in kinds if count]
        if not parts:
            if self.absmax is None:
                return f"{self.numel:,} values"
            return f"{self.numel:,} finite values, absmax {self.absmax:.4g}"
        first = f"{counts[0]} of {self.numel:,} values {parts[0]}"
        return ", ".join([first, *(f"{count} {part}" for count, part in zip(counts[1:], parts[1:], strict=True))])


@dataclass(frozen=True, slots=True)
class Source:
    """A line of the user's code. `column` and `end_column` (0-based) mark the guilty expression where known.

    What looks like a secret in `text` becomes asterisks of the same length.
    """

    file: str
    line: int
    function: str = ""
    text: str = ""
    column: int | None = None
    end_column: int | None = None
    inferred: bool = False
    extra: Mapping[str, Any] = field(default_factory=_nothing, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", without_secrets(self.text))


@dataclass(frozen=True, slots=True)
class Site:
    """Where something happened. `call` counts the calls of one module inside one forward, from 0."""

    phase: Phase
    module: str | None = None
    op: str | None = None
    node: str | None = None
    source: Source | None = None
    rank: int = 0
    call: int | None = None
    extra: Mapping[str, Any] = field(default_factory=_nothing, repr=False)


@dataclass(frozen=True, slots=True)
class Finding:
    """One observation: the tensor `name`, of this kind, seen in this phase, with its statistics."""

    kind: FindingKind
    name: str
    phase: Phase
    stats: TensorStats | None = None
    value: float | None = None
    note: str = ""
    first_index: tuple[int, ...] | None = None
    samples: tuple[int, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=_nothing, repr=False)


@dataclass(frozen=True, slots=True)
class Frame:
    """One operation on the way to the origin, or from it to the loss.

    `absmax` shows how large its result was, so that a reader sees 5.9e4 before 65504. `share` is the part of its values
    that is not finite, from 0 to 1, where it was counted; `left_out` counts the operations between the frame before and
    this one that are not in the list.
    """

    op: str
    module: str | None = None
    dtype: str = ""
    absmax: float | None = None
    nonfinite: int = 0
    phase: Phase = "forward"
    line: int | None = None
    origin: bool = False
    share: float | None = None
    left_out: int = 0
    extra: Mapping[str, Any] = field(default_factory=_nothing, repr=False)


@dataclass(frozen=True, slots=True)
class Probe:
    """A `nantrap.probe` point as it was in the failed step, with the values watched next to it."""

    name: str
    stats: TensorStats
    watch: Mapping[str, float] = field(default_factory=_nothing)
    first_bad: bool = False
    extra: Mapping[str, Any] = field(default_factory=_nothing, repr=False)


@dataclass(frozen=True, slots=True)
class Evidence:
    """One reason to believe a cause: measured on the step, shown by a trial, or read from the history."""

    text: str
    kind: Literal["measured", "trial", "history"] = "measured"
    trial: int | None = None
    data: Mapping[str, Any] = field(default_factory=_nothing)
    extra: Mapping[str, Any] = field(default_factory=_nothing, repr=False)


@dataclass(frozen=True, slots=True)
class Alternative:
    """One thing that may be done. `trial` made exactly this change: `verified`, the step was finite; else it failed
    again. Without a trial it was not tried."""

    text: str
    verified: bool = False
    trial: int | None = None
    extra: Mapping[str, Any] = field(default_factory=_nothing, repr=False)


@dataclass(frozen=True, slots=True)
class Fix:
    """What to do. `verified` only when trial number `trial` made the step finite with exactly this change.

    `others` are the alternatives to `text`, each with its own trial or none; `note` is a remark that is no advice. `of`
    says what was run again in the trials.
    """

    text: str
    code: str = ""
    diff: str = ""
    verified: bool = False
    trial: int | None = None
    others: tuple[Alternative, ...] = ()
    note: str = ""
    of: Literal["step", "call", "statement"] = "step"
    extra: Mapping[str, Any] = field(default_factory=_nothing, repr=False)

    @property
    def verified_by(self) -> tuple[int, ...]:
        """The trials that verify it or one of its alternatives."""
        every = ((self.verified, self.trial), *((one.verified, one.trial) for one in self.others))
        return tuple(number for verified, number in every if verified and number is not None)

    @property
    def words(self) -> str:
        """All of it in one line: what is verified, what was not tried, and what was tried in vain."""
        every = (Alternative(self.text, self.verified, self.trial), *self.others)
        failed = [f"{one.text} (trial {one.trial})" for one in every if not one.verified and one.trial is not None]
        open_ = self._untried if self.verified_by else ""
        said = [self.advice, f"not tried: {open_}" if open_ else ""]
        said += [f"not enough: {', '.join(failed)}" if failed else "", self.note]
        return "; ".join(part for part in said if part)

    @property
    def advice(self) -> str:
        """What to do: what is verified, and only without such a change what was not tried."""
        every = (Alternative(self.text, self.verified, self.trial), *self.others)
        held = [one for one in every if one.verified and one.trial is not None]
        said = [f"{one.text}: verified, the {self.of} is finite with it (trial {one.trial})" for one in held]
        return "; ".join(said) or self._untried

    @property
    def _untried(self) -> str:
        every = (Alternative(self.text, self.verified, self.trial), *self.others)
        return ", or ".join(one.text for one in every if one.trial is None)


@dataclass(frozen=True, slots=True)
class Cause:
    """A diagnosis. `proven` means a trial, or a measurement that admits no other reading; else it is a guess.

    `risk` is `high`, `medium` or `low`: what follows if nothing is done (empty in files written before it existed).
    `confidence` only repeats how well it is supported: 1.0 for a proven cause.
    """

    slug: str
    proven: bool = False
    confidence: float = 0.0
    risk: str = ""
    summary: str = ""
    evidence: tuple[Evidence, ...] = ()
    fix: Fix | None = None
    extra: Mapping[str, Any] = field(default_factory=_nothing, repr=False)

    @property
    def code(self) -> str:
        """The stable code, `NT203`."""
        entry = BY_SLUG.get(self.slug)
        return entry.code if entry else str(self.extra.get("code", "NT000"))

    @property
    def title(self) -> str:
        """The cause in one line, independent of this incident."""
        entry = BY_SLUG.get(self.slug)
        return entry.title if entry else str(self.extra.get("title", self.slug))


@dataclass(frozen=True, slots=True)
class Trial:
    """A replay of the failed step with exactly one thing changed. `finite` is `None` when it could not be run.

    `harness` says what was run: `step`, `update`, or `steps` from an older state. The control of a trial is the entry
    of `Incident.controls` with the same harness.
    """

    number: int
    name: str
    change: str
    finite: bool | None
    loss: float | None = None
    note: str = ""
    milliseconds: float = 0.0
    harness: str = ""
    extra: Mapping[str, Any] = field(default_factory=_nothing, repr=False)


@dataclass(frozen=True, slots=True)
class Magnitudes:
    """How large the suspect was over the last steps: the largest finite magnitude by step.

    `of` says what was measured, `dtype` in which dtype it is. `how` is `sampled` (while the run was healthy, in a few
    of its steps) or `repeated` (the last steps were run again after the failure, from an older state).
    """

    of: str
    dtype: str
    how: str = "sampled"
    by_step: Mapping[str, float] = field(default_factory=_nothing)
    extra: Mapping[str, Any] = field(default_factory=_nothing, repr=False)


@dataclass(frozen=True, slots=True)
class Incident:
    """One failed step: what was seen, where it began, why, and what was done.

    The names are the same in `incident.json`. `notes` describes what could not be established.

    `rank` is the rank that wrote this incident, `origin_rank` the one where it began (`None` if that is not known), and
    `bad_ranks` are all ranks that saw something bad. `restored` says whether the state was checked and found to be as
    before the step; `None` where that was not the aim (an applied step, a rollback). `restored_step` is the step
    whose state a rollback restored. `epoch` and `batch` are known
    where the training loop gives them (`Guard.set_position`). `inputs` are the tensors of the batch (or, where only
    those are seen, of the model's call) with their statistics, good and bad.

    `provenance` says how a value that was bad before the step came into it: the variables of the program that are bad,
    the earliest first, each with the statement that assigned it.

    `during` says whether it is a step at all: an incident of an evaluation or an inference belongs to none. `step` is
    then the number of steps made so far, and `batch` that of the evaluation's data loader.

    `action` is what became of the step, and `decided_by` who decided that.

    `frames` lead to the origin and end with it; `path` are the operations from there on that carried the non-finite
    values to the loss or, in the backward pass, to the gradients. `controls` are the unchanged re-runs that `trials`
    rest on.
    """

    step: int
    rank: int = 0
    origin_rank: int | None = None
    bad_ranks: tuple[int, ...] = ()
    epoch: int | None = None
    batch: int | None = None
    phase: Phase = "forward"
    module: str | None = None
    op: str | None = None
    node: str | None = None
    source: Source | None = None
    call: int | None = None
    findings: tuple[Finding, ...] = ()
    causes: tuple[Cause, ...] = ()
    refuted: tuple[Cause, ...] = ()
    samples: tuple[int, ...] = ()
    dataset_indices: tuple[int, ...] = ()
    trials: tuple[Trial, ...] = ()
    controls: tuple[Trial, ...] = ()
    frames: tuple[Frame, ...] = ()
    path: tuple[Frame, ...] = ()
    probes: tuple[Probe, ...] = ()
    inputs: tuple[Finding, ...] = ()
    action: Action = Action.SKIP
    loss: float | None = None
    terms: Mapping[str, float] = field(default_factory=_nothing)
    grad_norm: float | None = None
    lr: tuple[float, ...] = ()
    exact: bool | None = None
    headroom: Mapping[str, float] = field(default_factory=_nothing)
    magnitudes: tuple[Magnitudes, ...] = ()
    same_as: int | None = None
    bundle: str | None = None
    restored: bool | None = None
    restored_step: int | None = None
    notes: tuple[str, ...] = ()
    during: During = "training"
    decided_by: Decider = "nantrap"
    provenance: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=_nothing, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "notes", tuple(map(without_secrets, self.notes)))

    @property
    def cause(self) -> Cause | None:
        """The best explanation, or `None`: the first of `causes`."""
        return self.causes[0] if self.causes else None

    @property
    def site(self) -> Site:
        """Where it began, as one object."""
        return Site(
            phase=self.phase,
            module=self.module,
            op=self.op,
            node=self.node,
            source=self.source,
            rank=self.rank,
            call=self.call,
        )

    def to_dict(self) -> dict[str, Any]:
        """The incident as plain JSON values, with its schema."""
        from nantrap.incident.codec import encode_incident

        return encode_incident(self)

    def __str__(self) -> str:
        """The diagnostic, as a terminal shows it. Its text belongs to a higher layer and is looked up when shown."""
        text: str = importlib.import_module("nantrap.report").render_incident(self)
        return text

    def _repr_html_(self) -> str:
        """For notebooks. The pages belong to a higher layer and are looked up when one is shown."""
        html: str = importlib.import_module("nantrap.report.notebook").incident_html(self)
        return html

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Incident:
        """Read what `to_dict` wrote, also by a newer nantrap. A malformed one raises an error that names the field."""
        from nantrap.incident.codec import decode_incident

        return decode_incident(data)
