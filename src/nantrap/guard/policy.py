"""`Policy`: what the guard checks, what it does about it, and its budgets. Frozen; validates its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from nantrap.errors import UsageError

OnIncident = Literal["skip", "raise", "observe"]
Then = Literal["rollback", "stop"]
Diagnose = Literal["full", "locate", "off"]
Sync = Literal["step", "late"]
Bundle = Literal["full", "light", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What to check, what to do, budgets.

    Attributes:
        on_incident: `skip` the step, `raise` `NonFiniteError`, or only `observe` (the step is applied unchanged).
        max_consecutive_skips: number of incidents in a row that are skipped; the next one leads to `then`.
        max_skips_in_window: the same for incidents among the last `window` steps; `None` switches it off.
        window: how many steps `max_skips_in_window` looks back.
        then: what follows after too many skips: `rollback` to the last good state (while there is one), or `stop`.
            Weights or optimizer state that other code made non-finite are rolled back at once, and so is a buffer by
            which the step failed: no skip helps.
        max_rollbacks: number of rollbacks after which the guard stops the run.
        lr_backoff: a rollback multiplies every learning rate by this.
        lr_recover_steps: number of applied steps within which the learning rates return to their old values; 0 for
            never.
        rollback_rng: whether a rollback puts the random streams back too (`restore`) or lets them continue
            (`continue`).
        diagnose: `full` (locate, rules, trials), `locate` or `off`.
        diagnose_seconds: a diagnosis ends after about this many seconds, with what it has by then.
        armed: in the two-line form and under `nantrap run`, steps are traced while they run, so that a failure comes
            with its operands and with the lines of the loss function: `after` an incident whose cause was not proven,
            `always` (about 1.2 times a step of usual size), or `off`.
        armed_steps: the most steps that are traced after an incident.
        repeat_diagnoses: how often incidents that look the same are diagnosed; later ones are counted and refer back.
        sync: `step` reads one value per step; `late` reads it one step later, and the skip happens on the device
            (fused Adam, AdamW, Adagrad and SGD without momentum).
        rank_flags: when the ranks of a `DistributedDataParallel` model exchange what they found. `every_step`: one
            small all-reduce per step, so that they always decide together. `averaged`: nothing is exchanged while the
            averaged gradients show everything; a fault that one rank alone has after the averaging (its memory, its
            optimizer state) then ends that rank with `RankLostError` instead of a common skip.
        undo: how an update that made non-finite values is undone: `auto` copies parameters and optimizer state
            before a step only where the update cannot be proven finite in advance, `always`, or `never`.
        anchor_every: number of steps between copies of the state in memory, for rollback and for trials; 0 for never.
        anchor_bytes: no anchor is kept, and no further batches, when that would take more memory than this.
        scheduler_on_skip: whether a skipped step advances the schedule: `hold` (as Accelerate does) or `advance`.
        micro_batches: in gradient accumulation a bad micro-batch is dropped and the good ones kept (`drop`), or the
            whole `window` is dropped. With several ranks it is always the window.
        micro_weight: how the losses of a window add up: `mean` (each was divided by their number, so the rest is
            scaled up when one is dropped) or `sum`.
        bad_terms: with a dict of loss terms (or a vector of heads), `skip` the step when one of them is bad, or `drop`
            the bad ones and apply the step with the good ones, as if the bad ones did not exist. A term is bad if
            its value or its own gradient is non-finite. If all are bad, or heads are computed in one tensor and
            cannot be separated, the step is skipped. `drop` reads the terms before backward and keeps the graph until
            the step is judged, which needs more memory. With several ranks, and with compiled models, only bad
            values are dropped.
        check_batch: check the batch before the forward pass (`attempt` only), instead of after a failure only.
        batch_range: compare each batch with the batches before it, before the forward pass: a batch far outside their
            range (pixels of 0 to 255 instead of 0 to 1, one value of 1e25) is reported (`warn`) or its step skipped
            (`skip`), with path and sample. `off` does not compare. In the two-line form and under `nantrap run` the
            inputs of the model are the batch. Costs one pass over the batch and a host read.
        batch_ranges: ranges that are known, by path or pattern: `{"image": (0.0, 1.0)}`. Values outside are reported
            from the first batch on (or skipped, with `batch_range="skip"`).
        check_state_every: number of steps between checks of all parameters, buffers and optimizer state; 0 for never.
        magnitudes_every: number of steps between samples of the magnitude of each module's output, after a few samples
            in the first steps. An incident shows how large the suspect was in them. 0 for never.
        headroom_every: the same with a warning before an overflow, and from the first step on; 0 for no warnings.
        spikes: a finite loss or gradient norm far outside its recent range is reported (`warn`), skipped (`skip`) or
            ignored (`off`).
        spike_threshold: how far, in robust standard deviations (1.4826 MAD).
        spike_window: how many recent steps make the statistic.
        spike_warmup: number of first steps that are never called a spike.
        max_scaler_probes: number of consecutive overflows of a `GradScaler` that count as its normal search for a
            scale; more are an incident, as is a scale below 1.
        bundle: what an incident leaves on disk: `full` (with what a replay needs), `light` (JSON and report) or `off`.
        bundle_data: whether the batch may be written into a bundle. Off: data is written to disk only if you ask for
            it.
        bundle_bytes: a bundle above this is written `light`.
        max_bundles: beyond this number, bundles in the middle are removed; the first and the last ones are kept.
    """

    on_incident: OnIncident = "skip"
    max_consecutive_skips: int = 5
    max_skips_in_window: int | None = 50
    window: int = 200
    then: Then = "rollback"
    max_rollbacks: int = 3
    lr_backoff: float = 0.5
    lr_recover_steps: int = 0
    rollback_rng: Literal["restore", "continue"] = "restore"
    diagnose: Diagnose = "full"
    diagnose_seconds: float = 60.0
    armed: Literal["after", "always", "off"] = "after"
    armed_steps: int = 100
    repeat_diagnoses: int = 3
    sync: Sync = "step"
    rank_flags: Literal["every_step", "averaged"] = "every_step"
    undo: Literal["auto", "always", "never"] = "auto"
    anchor_every: int = 32
    anchor_bytes: int = 256 * 2**20
    scheduler_on_skip: Literal["hold", "advance"] = "hold"
    micro_batches: Literal["drop", "window"] = "drop"
    micro_weight: Literal["mean", "sum"] = "mean"
    bad_terms: Literal["skip", "drop"] = "skip"
    check_batch: bool = False
    batch_range: Literal["off", "warn", "skip"] = "off"
    batch_ranges: Mapping[str, tuple[float, float]] | None = None
    check_state_every: int = 1000
    magnitudes_every: int = 64
    headroom_every: int = 0
    spikes: Literal["warn", "skip", "off"] = "warn"
    spike_threshold: float = 12.0
    spike_window: int = 128
    spike_warmup: int = 50
    max_scaler_probes: int = 20
    bundle: Bundle = "light"
    bundle_data: bool = False
    bundle_bytes: int = 512 * 2**20
    max_bundles: int = 20

    def __post_init__(self) -> None:
        """Refuse what cannot be right, by the name of the field."""
        choices: dict[str, tuple[str, ...]] = {
            "on_incident": get_args(OnIncident),
            "then": get_args(Then),
            "diagnose": get_args(Diagnose),
            "armed": ("after", "always", "off"),
            "sync": get_args(Sync),
            "rank_flags": ("every_step", "averaged"),
            "undo": ("auto", "always", "never"),
            "rollback_rng": ("restore", "continue"),
            "scheduler_on_skip": ("hold", "advance"),
            "micro_batches": ("drop", "window"),
            "micro_weight": ("mean", "sum"),
            "bad_terms": ("skip", "drop"),
            "spikes": ("warn", "skip", "off"),
            "batch_range": ("off", "warn", "skip"),
            "bundle": get_args(Bundle),
        }
        for name, allowed in choices.items():
            value = getattr(self, name)
            if not isinstance(value, str) or value not in allowed:
                raise UsageError(f"Policy({name}={value!r}): choose one of {', '.join(allowed)}")
        least: dict[str, float] = {
            "max_consecutive_skips": 0,
            "window": 1,
            "max_rollbacks": 0,
            "lr_recover_steps": 0,
            "diagnose_seconds": 0,
            "armed_steps": 1,
            "repeat_diagnoses": 1,
            "anchor_every": 0,
            "anchor_bytes": 0,
            "check_state_every": 0,
            "magnitudes_every": 0,
            "headroom_every": 0,
            "spike_window": 8,
            "spike_warmup": 8,
            "max_scaler_probes": 0,
            "bundle_bytes": 0,
            "max_bundles": 1,
        }
        for name, bound in least.items():
            _check_number(name, getattr(self, name), least=bound, whole=name != "diagnose_seconds")
        if self.max_skips_in_window is not None:
            _check_number("max_skips_in_window", self.max_skips_in_window, least=0, whole=True)
        for name in ("lr_backoff", "spike_threshold"):
            _check_number(name, getattr(self, name), whole=False)
        for name in ("check_batch", "bundle_data"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"Policy({name}={getattr(self, name)!r}): expected True or False")
        if self.sync == "late" and (self.batch_range != "off" or self.batch_ranges):
            raise UsageError(
                'Policy(sync="late") does not read a batch before its step, and batch_range must; use sync="step"'
            )
        if self.batch_ranges is not None:
            _check_ranges(self.batch_ranges)
        if not 0 < self.lr_backoff <= 1:
            raise UsageError(
                f"Policy(lr_backoff={self.lr_backoff!r}): a factor above 0 and at most 1; 0.5 halves the learning rate"
            )
        if not self.spike_threshold > 0:
            raise UsageError(f"Policy(spike_threshold={self.spike_threshold!r}): must be above 0")

    @classmethod
    def strict(cls, **changes: Any) -> Policy:
        """Raise `NonFiniteError` at the first incident, before anything is changed or saved."""
        return replace(cls(on_incident="raise"), **changes)

    @classmethod
    def observe(cls, **changes: Any) -> Policy:
        """Only report: every step is applied exactly as the plain loop would."""
        return replace(cls(on_incident="observe"), **changes)


def _check_ranges(given: Any) -> None:
    """Refuse what is no dict of paths to two numbers in order."""
    if not isinstance(given, Mapping):
        raise UsageError(f'Policy(batch_ranges={given!r}): expected a dict such as {{"image": (0.0, 1.0)}}')
    for path, limits in given.items():
        pair = isinstance(limits, (tuple, list)) and len(limits) == 2
        if not pair or not all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in limits):
            raise UsageError(f"Policy(batch_ranges): {path!r} has {limits!r}; expected two numbers, (low, high)")
        if not limits[0] <= limits[1]:
            raise UsageError(f"Policy(batch_ranges): {path!r} has {limits!r}; the first number is the lower one")


def _check_number(name: str, value: Any, *, least: float | None = None, whole: bool) -> None:
    """Refuse what is no number, is NaN, or is below the least value that makes sense."""
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or value != value:
        raise UsageError(f"Policy({name}={value!r}): expected a {'whole ' if whole else ''}number")
    if least is not None and value < least:
        raise UsageError(f"Policy({name}={value!r}): must be at least {least}")
