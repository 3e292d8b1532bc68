"""`Policy`: what the guard checks, what it does about it, and its budgets. Frozen; validates its arguments.

What people set stands in `Policy` itself; what is set now and then, in groups: `Policy(spikes=Spikes(window=64))`.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from nantrap.errors import UsageError

OnIncident = Literal["skip", "raise", "observe"]
Then = Literal["rollback", "stop"]
Diagnose = Literal["full", "locate", "off"]
Sync = Literal["auto", "step", "late"]
RankFlags = Literal["every_step", "averaged"]
BadTerms = Literal["skip", "drop"]
SpikeAction = Literal["warn", "skip", "off"]
BundleKind = Literal["full", "light", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skips:
    """When skipped steps are too many, and what a skipped step means for schedule and scaler.

    Attributes:
        in_window: number of incidents among the last `window` steps that are skipped; the next one leads to
            `Policy.then`. `None` switches it off.
        window: how many steps `in_window` looks back.
        scheduler: whether a skipped step advances the schedule: `hold` (as Accelerate does) or `advance`.
        scaler_probes: number of consecutive overflows of a `GradScaler` that count as its normal search for a scale;
            more are an incident, as is a scale below 1.
    """

    in_window: int | None = 50
    window: int = 200
    scheduler: Literal["hold", "advance"] = "hold"
    scaler_probes: int = 20

    def __post_init__(self) -> None:
        """Refuse what cannot be right, by the name of the field."""
        _check_choices(self, scheduler=("hold", "advance"))
        _check_numbers(self, window=1, scaler_probes=0)
        if self.in_window is not None:
            _check_numbers(self, in_window=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """What is kept so that a step, or several, can be taken back.

    Attributes:
        anchor_every: number of steps between copies of the state in memory, for rollback and for trials; 0 for none.
            Of a state of up to 64 MiB one more copy is taken every 8 steps, so that a rollback loses few of them.
        anchor_bytes: no such copy is kept, and no further batches, when that would take more memory than this.
        rng: whether a rollback restores the random streams too (`restore`) or lets them continue (`continue`).
        lr_recover_steps: number of applied steps within which the learning rates return to their old values; 0 for
            never.
        undo: how an update that made non-finite values is undone: `auto` copies parameters and optimizer state
            before a step only where the update cannot be proven finite in advance, `always`, or `never`.
    """

    anchor_every: int = 32
    anchor_bytes: int = 256 * 2**20
    rng: Literal["restore", "continue"] = "restore"
    lr_recover_steps: int = 0
    undo: Literal["auto", "always", "never"] = "auto"

    def __post_init__(self) -> None:
        """Refuse what cannot be right, by the name of the field."""
        _check_choices(self, rng=("restore", "continue"), undo=("auto", "always", "never"))
        _check_numbers(self, anchor_every=0, anchor_bytes=0, lr_recover_steps=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """How much time a diagnosis may take.

    Attributes:
        seconds: a diagnosis ends after about this many seconds, with what it has by then. What was not tried is said.
        steps: the same in steps of the run; it has twenty seconds in any case, as far as `seconds` allows them. Where
            diagnoses have taken longer than `seconds` and than a quarter of the run, no further step is run again.
        repeats: how often incidents that look the same are diagnosed; later ones are counted and refer back.
        armed: in the two-line form and under `nantrap run`, steps are traced while they run, so that a failure comes
            with its operands and with the lines of the loss function: `after` an incident whose cause was not proven,
            `always` (about 1.2 times a step of usual size), or `off`.
        armed_steps: the most steps that are traced after an incident.
        clock: what measures the time of a diagnosis, in seconds.
    """

    seconds: float = 60.0
    steps: float = 20.0
    repeats: int = 3
    armed: Literal["after", "always", "off"] = "after"
    armed_steps: int = 100
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        """Refuse what cannot be right, by the name of the field."""
        _check_choices(self, armed=("after", "always", "off"))
        _check_numbers(self, armed_steps=1, repeats=1)
        _check_numbers(self, whole=False, seconds=0, steps=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulation:
    """What happens to the other micro-batches when one of a step is bad.

    Attributes:
        bad: a bad micro-batch is dropped and the good ones kept (`drop`), or the whole `window` is dropped. With
            several ranks it is always the window.
        weight: how the losses of a window add up: `mean` (each was divided by their number, so the rest is scaled up
            when one is dropped) or `sum`.
    """

    bad: Literal["drop", "window"] = "drop"
    weight: Literal["mean", "sum"] = "mean"

    def __post_init__(self) -> None:
        """Refuse what cannot be right, by the name of the field."""
        _check_choices(self, bad=("drop", "window"), weight=("mean", "sum"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchChecks:
    """What is read of a batch before its forward pass.

    Attributes:
        finite: look for NaN and Inf before the forward pass (`attempt` only), instead of after a failure only.
        unusual: compare each batch with the batches before it: a batch far outside their range (pixels of 0 to 255
            instead of 0 to 1, one value of 1e25) is reported (`warn`) or its step skipped (`skip`), with path and
            sample. `off` does not compare. In the two-line form and under `nantrap run` the inputs of the model are the
            batch. Costs one pass over the batch and a host read.
        ranges: ranges that are known, by path or pattern: `{"image": (0.0, 1.0)}`. Values outside are reported from
            the first batch on (or skipped, with `unusual="skip"`).
    """

    finite: bool = False
    unusual: Literal["off", "warn", "skip"] = "off"
    ranges: Mapping[str, tuple[float, float]] | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be right, by the name of the field."""
        _check_choices(self, unusual=("off", "warn", "skip"))
        _check_flags(self, "finite")
        if self.ranges is not None:
            _check_ranges(self.ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """What is looked at from time to time while the run is healthy.

    Attributes:
        state_every: number of steps between checks of all parameters, buffers and optimizer state; 0 for never.
        magnitudes_every: number of steps between samples of the magnitude of each module's output, after a few samples
            in the first steps. An incident shows how large the suspect was in them. 0 for never.
        headroom_every: the same with a warning before an overflow, and from the first step on; 0 for no warnings.
    """

    state_every: int = 1000
    magnitudes_every: int = 64
    headroom_every: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be right, by the name of the field."""
        _check_numbers(self, state_every=0, magnitudes_every=0, headroom_every=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spikes:
    """When a finite loss or gradient norm counts as a spike.

    Attributes:
        action: one far outside its recent range is reported (`warn`), skipped (`skip`) or ignored (`off`).
        threshold: how far, in robust standard deviations (1.4826 MAD).
        window: how many recent steps make the statistic.
        warmup: number of first steps that are never called a spike.
    """

    action: SpikeAction = "warn"
    threshold: float = 12.0
    window: int = 128
    warmup: int = 50

    def __post_init__(self) -> None:
        """Refuse what cannot be right, by the name of the field."""
        _check_choices(self, action=get_args(SpikeAction))
        _check_numbers(self, window=8, warmup=8)
        _check_numbers(self, whole=False, threshold=None)
        if not self.threshold > 0:
            raise UsageError(f"Spikes(threshold={self.threshold!r}): must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """What an incident leaves on disk.

    Attributes:
        kind: `full` (with what a replay needs), `light` (JSON and report) or `off`.
        data: whether the batch may be written into a bundle. Off: data is written to disk only if you ask for it.
        max_bytes: a bundle above this is written `light`.
        most: beyond this number, bundles in the middle are removed; the first and the last ones are kept.
    """

    kind: BundleKind = "light"
    data: bool = False
    max_bytes: int = 512 * 2**20
    most: int = 20

    def __post_init__(self) -> None:
        """Refuse what cannot be right, by the name of the field."""
        _check_choices(self, kind=get_args(BundleKind))
        _check_flags(self, "data")
        _check_numbers(self, max_bytes=0, most=1)


_MOVED = {
    "max_skips_in_window": ("skips", "in_window"),
    "window": ("skips", "window"),
    "scheduler_on_skip": ("skips", "scheduler"),
    "max_scaler_probes": ("skips", "scaler_probes"),
    "anchor_every": ("rollback", "anchor_every"),
    "anchor_bytes": ("rollback", "anchor_bytes"),
    "rollback_rng": ("rollback", "rng"),
    "lr_recover_steps": ("rollback", "lr_recover_steps"),
    "undo": ("rollback", "undo"),
    "diagnose_seconds": ("diagnosis", "seconds"),
    "repeat_diagnoses": ("diagnosis", "repeats"),
    "armed": ("diagnosis", "armed"),
    "armed_steps": ("diagnosis", "armed_steps"),
    "micro_batches": ("accumulation", "bad"),
    "micro_weight": ("accumulation", "weight"),
    "check_batch": ("batches", "finite"),
    "batch_range": ("batches", "unusual"),
    "batch_ranges": ("batches", "ranges"),
    "check_state_every": ("sampling", "state_every"),
    "magnitudes_every": ("sampling", "magnitudes_every"),
    "headroom_every": ("sampling", "headroom_every"),
    "spike_threshold": ("spikes", "threshold"),
    "spike_window": ("spikes", "window"),
    "spike_warmup": ("spikes", "warmup"),
    "bundle_data": ("bundle", "data"),
    "bundle_bytes": ("bundle", "max_bytes"),
    "max_bundles": ("bundle", "most"),
}
"""Where a field is that was one of `Policy` itself before 0.1. The old names work until 0.2, with a warning; `run.json`
keeps them, so that every version reads the runs of every other."""


@dataclass(frozen=True, slots=True, init=False)
class Policy:
    """What to check, what to do, budgets.

    Attributes:
        on_incident: `skip` the step, `raise` `NonFiniteError`, or only `observe` (the step is applied unchanged).
        max_consecutive_skips: number of incidents in a row that are skipped; the next one leads to `then`. Steps that
            are given one bad tensor of the program beside their batch (advantages of a rollout) count as one.
        then: what follows after too many skips: `rollback` to the last good state (while there is one), or `stop`.
            Weights or optimizer state that other code made non-finite are rolled back at once, and so is a buffer by
            which the step failed: no skip helps.
        max_rollbacks: number of rollbacks after which the guard stops the run.
        lr_backoff: a rollback multiplies every learning rate by this.
        diagnose: `full` (locate, rules, trials), `locate` or `off`.
        sync: when the host learns the result of a step. `step`: before its update, by one read. `late`: one step
            later, so that no healthy step waits for the device; a bad one is skipped on the device (fused Adam, AdamW,
            Adagrad and SGD without momentum) and diagnosed a step later. `auto`: `late` on an accelerator where that
            is possible, else `step`; `run.json` says which, and why.
        rank_flags: when the ranks of a `DistributedDataParallel` model exchange what they found. `every_step`: one
            small all-reduce per step, so that they always decide together. `averaged`: nothing is exchanged while the
            averaged gradients show everything; a fault that one rank alone has after the averaging (its memory, its
            optimizer state) then ends that rank with `RankLostError` instead of a common skip.
        bad_terms: with a dict of loss terms (or a vector of heads), `skip` the step when one of them is bad, or `drop`
            the bad ones and apply the step with the good ones, as if the bad ones did not exist. A term is bad if
            its value or its own gradient is non-finite. If all are bad, or heads are computed in one tensor and
            cannot be separated, the step is skipped. `drop` reads the terms before backward and keeps the graph until
            the step is judged, which needs more memory. With several ranks, and with compiled models, only bad
            values are dropped.
        spikes: what is done about a finite loss or gradient norm far outside its recent range: `warn`, `skip`, `off`,
            or `Spikes(...)`.
        bundle: what an incident leaves on disk: `full`, `light`, `off`, or `Bundle(...)`.
        skips: when skipped steps are too many.
        rollback: what is kept so that steps can be taken back.
        diagnosis: how much time a diagnosis may take.
        accumulation: what happens to the other micro-batches of a step when one is bad.
        batches: what is read of a batch before its forward pass.
        sampling: what is looked at from time to time while the run is healthy.
    """

    on_incident: OnIncident
    max_consecutive_skips: int
    then: Then
    max_rollbacks: int
    lr_backoff: float
    diagnose: Diagnose
    sync: Sync
    rank_flags: RankFlags
    bad_terms: BadTerms
    spikes: Spikes
    bundle: Bundle
    skips: Skips
    rollback: Rollback
    diagnosis: Diagnosis
    accumulation: Accumulation
    batches: BatchChecks
    sampling: Sampling

    def __init__(
        self,
        *,
        on_incident: OnIncident = "skip",
        max_consecutive_skips: int = 5,
        then: Then = "rollback",
        max_rollbacks: int = 3,
        lr_backoff: float = 0.5,
        diagnose: Diagnose = "full",
        sync: Sync = "auto",
        rank_flags: RankFlags = "every_step",
        bad_terms: BadTerms = "skip",
        spikes: Spikes | SpikeAction = "warn",
        bundle: Bundle | BundleKind = "light",
        skips: Skips | None = None,
        rollback: Rollback | None = None,
        diagnosis: Diagnosis | None = None,
        accumulation: Accumulation | None = None,
        batches: BatchChecks | None = None,
        sampling: Sampling | None = None,
        **old: Any,
    ) -> None:
        """Take the fields as given; `old` are names from before there were groups."""
        given = locals()
        values: dict[str, Any] = {name: given[name] for name in self.__slots__}
        values["spikes"] = Spikes(action=spikes) if isinstance(spikes, str) else spikes
        values["bundle"] = Bundle(kind=bundle) if isinstance(bundle, str) else bundle
        for name, group in _GROUPS.items():
            if values[name] is None:
                values[name] = group()
            elif not isinstance(values[name], group):
                raise UsageError(f"Policy({name}={values[name]!r}): expected {group.__name__}(...)")
        for name, value in old.items():
            group_name, field_name = _moved(name)
            values[group_name] = replace(values[group_name], **{field_name: value})
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._check()

    def __getattr__(self, name: str) -> Any:
        """A field by the name that it had before there were groups."""
        if name not in _MOVED:
            raise AttributeError(f"Policy has no field {name!r}")
        group_name, field_name = _moved(name)
        return getattr(getattr(self, group_name), field_name)

    def _check(self) -> None:
        """Refuse what cannot be right, by the name of the field."""
        _check_choices(
            self,
            on_incident=get_args(OnIncident),
            then=get_args(Then),
            diagnose=get_args(Diagnose),
            sync=get_args(Sync),
            rank_flags=get_args(RankFlags),
            bad_terms=get_args(BadTerms),
        )
        _check_numbers(self, max_consecutive_skips=0, max_rollbacks=0)
        _check_numbers(self, whole=False, lr_backoff=None)
        if not 0 < self.lr_backoff <= 1:
            raise UsageError(
                f"Policy(lr_backoff={self.lr_backoff!r}): a factor above 0 and at most 1; 0.5 halves the learning rate"
            )

    @classmethod
    def strict(cls, **changes: Any) -> Policy:
        """Raise `NonFiniteError` at the first incident, before anything is changed or saved."""
        return cls(**{"on_incident": "raise", **changes})

    @classmethod
    def observe(cls, **changes: Any) -> Policy:
        """Only report: every step is applied exactly as the plain loop would."""
        return cls(**{"on_incident": "observe", **changes})

    def as_written(self) -> dict[str, Any]:
        """The fields as `run.json` has them: one level, by the names of `_MOVED`."""
        own = {name: getattr(self, name) for name in self.__slots__ if name not in _GROUPS}
        moved = {old: getattr(getattr(self, group), field) for old, (group, field) in _MOVED.items()}
        return {**own, "spikes": self.spikes.action, "bundle": self.bundle.kind, **moved}


_GROUPS: dict[str, type[Any]] = {
    "spikes": Spikes,
    "bundle": Bundle,
    "skips": Skips,
    "rollback": Rollback,
    "diagnosis": Diagnosis,
    "accumulation": Accumulation,
    "batches": BatchChecks,
    "sampling": Sampling,
}


def _moved(name: str) -> tuple[str, str]:
    """Group and field of an old name, with a warning that names them."""
    if name not in _MOVED:
        raise TypeError(f"Policy() has no field {name!r}; help(nantrap.Policy) lists them")
    group, field = _MOVED[name]
    new = f"Policy({group}=nantrap.{_GROUPS[group].__name__}({field}=...))"
    warnings.warn(f"Policy({name}=...) is now {new}; the old name goes in nantrap 0.2", FutureWarning, stacklevel=3)
    return group, field


def _check_choices(group: Any, **choices: tuple[str, ...]) -> None:
    """Refuse a value that is none of those allowed."""
    for name, allowed in choices.items():
        value = getattr(group, name)
        if not isinstance(value, str) or value not in allowed:
            raise UsageError(f"{type(group).__name__}({name}={value!r}): choose one of {', '.join(allowed)}")


def _check_flags(group: Any, *names: str) -> None:
    for name in names:
        if not isinstance(getattr(group, name), bool):
            raise UsageError(f"{type(group).__name__}({name}={getattr(group, name)!r}): expected True or False")


def _check_numbers(group: Any, *, whole: bool = True, **least: float | None) -> None:
    """Refuse what is no number, is NaN, or is below the least value that makes sense."""
    for name, bound in least.items():
        value, where = getattr(group, name), f"{type(group).__name__}({name}={getattr(group, name)!r})"
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or value != value:
            raise UsageError(f"{where}: expected a {'whole ' if whole else ''}number")
        if bound is not None and value < bound:
            raise UsageError(f"{where}: must be at least {bound}")


def _check_ranges(given: Any) -> None:
    """Refuse what is no dict of paths to two numbers in order."""
    if not isinstance(given, Mapping):
        raise UsageError(f'BatchChecks(ranges={given!r}): expected a dict such as {{"image": (0.0, 1.0)}}')
    for path, limits in given.items():
        pair = isinstance(limits, (tuple, list)) and len(limits) == 2
        if not pair or not all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in limits):
            raise UsageError(f"BatchChecks(ranges): {path!r} has {limits!r}; expected two numbers, (low, high)")
        if not limits[0] <= limits[1]:
            raise UsageError(f"BatchChecks(ranges): {path!r} has {limits!r}; the first number is the lower one")
