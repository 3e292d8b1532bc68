"""Where a run is, what it did so far, and what is printed of that when it ends or stops."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from nantrap.incident import Incident
from nantrap.incident.wording import counted, escaped
from nantrap.locate.nodes import leaves_below
from nantrap.record import StepTally, apart_lines, cause_lines
from nantrap.report import one_line


@dataclass(slots=True)
class Progress:
    """The number of the step that is being made, and the loop's own position where it is given.

    `samples` are the dataset's indices of the samples in the batch; `loaded` names what was not finite in the model
    when its weights were loaded since the last step (`None` if they were not); `cleaned` counts the samples of this
    step in which the script replaced non-finite values. `framework_epoch` and `framework_batch` are what a framework
    says: it knows where a resumed run is, and a data loader does not.
    """

    step: int = 0
    epoch: int | None = None
    batch: int | None = None
    samples: tuple[int, ...] = ()
    loaded: frozenset[str] | None = None
    cleaned: int = 0
    framework_epoch: int | None = None
    framework_batch: int | None = None


@dataclass(slots=True)
class Tally(StepTally):
    """What a run did so far, in numbers: its steps, and what is not in the journal."""

    dropped_terms: Counter[str] = field(default_factory=Counter)
    """Loss terms that were left out of a step that was applied, by name."""
    spikes: int = 0
    outside: int = 0
    """Batches outside their usual range."""
    steps_without_gradient: int = 0
    """Steps in a row, up to now, in which no gradient reached a parameter."""
    no_gradient_since: int | None = None
    """The first step of the last such series that was long enough to be reported."""
    no_gradient_because: str = ""
    """Why no gradient reaches a parameter, where it is certain."""
    left_out: int = 0
    """Bad losses that the script left out of a step that it made."""


EXPLAINED_AFTER = 4
"""Steps in a row without any gradient after which the graph is examined."""


def why_no_gradient(loss: Tensor, parameters: Sequence[Tensor]) -> str:
    """The reason in words, with its code; empty where there may be another one.

    Args:
        loss: of the backward pass that begins now.
        parameters: those of the optimizer.
    """
    owned = counted(len(parameters), "parameter")
    if not any(parameter.requires_grad for parameter in parameters):
        return (
            f"no gradient reaches the optimizer: all of its {owned} are frozen, requires_grad is False "
            "(NT876 optimizer_frozen)"
        )
    ours = set(map(id, parameters))
    leaves = leaves_below(loss)
    if leaves and not any(id(leaf) in ours for leaf in leaves) and len(leaves) >= len(parameters):
        return (
            f"no gradient reaches the optimizer: the loss depends on none of its {owned}, but on {len(leaves):,} "
            "others. The model was made, copied or loaded again after the optimizer (NT877 optimizer_of_another_model)"
        )
    return ""


LONGEST_LINE = 4000
"""A printed line is cut after this many characters: a name may be of any length."""


_MANY_STEPS = 20
"""A run of fewer steps may skip most of them and be healthy: a GradScaler begins with up to 16 that it skips."""
_SOME_STEPS = 6
"""So many steps, and none applied: nothing was trained. One more than may be skipped in a row."""
_LONGEST_SEARCH = 16
"""How many halvings lead from the first scale of a GradScaler, 65,536, to 1."""


def scaler_words(probes: int, attempted: int) -> str:
    """How many steps a GradScaler skipped while it searched its scale, and whether that is usual."""
    too_many = probes > _LONGEST_SEARCH and 2 * probes > attempted
    usual = "most of all steps: is the scaler, or its scale, made anew again and again?" if too_many else "normal"
    return f"{counted(probes, 'step')} skipped by the GradScaler while it searched its scale ({usual})"


def summary_text(tally: Tally, *, run_dir: str | None = None) -> str:
    """The end of a run in a few lines: what was applied, what was skipped and why."""
    share = 100.0 * tally.applied / tally.attempted if tally.attempted else 100.0
    lines = [f"{counted(tally.attempted, 'step')}, {tally.applied:,} applied ({share:.1f} %)"]
    if tally.incidents:
        by_script = f" ({tally.given_up:,} by the script itself)" if tally.given_up else ""
        skipped = counted(tally.skipped, "skipped step") + by_script
        lines.append(f"{counted(tally.incidents, 'incident')}, {skipped}, {counted(tally.rollbacks, 'rollback')}")
        lines += [f"  {line}" for line in cause_lines(tally.causes, tally.guesses)]
    lines += apart_lines(tally)
    if tally.dropped_micro_batches:
        lines.append(f"{counted(tally.dropped_micro_batches, 'micro-batch', 'micro-batches')} dropped")
    if tally.dropped_terms:
        terms = ", ".join(f"{escaped(name)} {count:,} ×" for name, count in tally.dropped_terms.most_common(8))
        more = len(tally.dropped_terms) - 8
        lines.append(f"loss terms left out of applied steps: {terms}" + (f" and {more:,} more" if more > 0 else ""))
    if tally.scaler_probes:
        lines.append(scaler_words(tally.scaler_probes, tally.attempted))
    if tally.outside:
        lines.append(f"{counted(tally.outside, 'step')} with a batch outside its usual range")
    if tally.spikes:
        lines.append(f"{counted(tally.spikes, 'spike')} of loss or gradient norm")
    lines += no_gradient_lines(tally)
    if words := most_skipped(tally):
        lines.append(words)
    if run_dir is not None:
        report = os.path.join(run_dir, "report.html")
        line = f"report: {report}" if os.path.exists(report) else f"journal: {run_dir}"
        lines.append(escaped(line, most=LONGEST_LINE))
    return "\n".join(lines)


def most_skipped(tally: Tally) -> str:
    """Words for an optimizer most of whose steps were skipped, whoever skipped them; empty if they were not.

    A short run may end while a GradScaler still searches its scale, so only a run without any step is judged early.
    """
    few = _MANY_STEPS if tally.applied else _SOME_STEPS
    if tally.attempted < few or 2 * tally.applied >= tally.attempted:
        return ""
    made = f"only {tally.applied:,}" if tally.applied else "none"
    was = "was" if tally.applied == 1 else "were"
    return f"MOST STEPS WERE SKIPPED: {made} of {tally.attempted:,} {was} applied"


def no_gradient_lines(tally: Tally) -> list[str]:
    """The summary's line if no gradient reached a parameter up to the end of the run."""
    if tally.no_gradient_because:
        return [tally.no_gradient_because]
    if tally.no_gradient_since is None:
        return []
    return [f"no gradient from step {tally.no_gradient_since:,} to the end: nothing was learned (NT505 dead_training)"]


def stop_message(incident: Incident, reason: str, restart: str = "") -> str:
    """The text of `NonFiniteError`: what happened, where, what was done, what to do."""
    lines = [one_line(incident, reason)]
    if incident.restored:
        lines.append("The step was not applied; parameters, optimizer state and buffers are as before it.")
    else:
        lines.append("The step was not applied.")
    if incident.cause is not None and incident.cause.fix is not None:
        lines.append(escaped(f"help: {incident.cause.fix.words}", most=LONGEST_LINE))
    return "\n".join([*lines, restart] if restart else lines)
