"""Values of the batch that are finite and far too large for any model, and the trials that show it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nantrap.causes.claim import Claim
from nantrap.causes.facts import in_words, listed, without
from nantrap.thresholds import MASKED, is_absurd, is_large

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case
    from nantrap.locate.replay.samples import Samples


_SURE_SENTINEL = 1e29
"""Programs write 1e30 or the largest float for "missing"; rounding may leave a little less of it."""
_LIKELY_SENTINEL = 1e15
"""A repeated whole number of this size that ends in 00 or 99 was written by a program: no instrument has 15 digits."""


@dataclass(frozen=True, slots=True)
class Extreme:
    """The largest value that came in from outside: its tensor, name and magnitude."""

    tensor: Tensor
    name: str
    value: float


def largest_input(case: Case) -> Extreme | None:
    """The largest value that came in from outside: from the batch, or in the two-line form from the model's inputs."""
    from nantrap.locate import tensors_of

    if case.made == "" or case.phase not in ("forward", "backward") or case.failure.norm_overflowed:
        return None
    given = list(tensors_of(case.failure.batch))
    if not case.failure.repeatable and case.failure.root_call is not None:
        given += list(tensors_of((case.failure.root_call.args, case.failure.root_call.kwargs)))
    if not case.failure.repeatable and case.phase == "forward" and case.location.module == "loss":
        given += [("a target of the loss", t) for t in case.inputs[1:]]
    worst: Extreme | None = None
    for path, tensor in given:
        if tensor.is_floating_point() and tensor.numel() and not _is_added_mask(tensor):
            value = float(tensor.detach().abs().max())
            if value < float("inf") and (worst is None or value > worst.value):
                worst = Extreme(tensor.detach(), in_words(path), value)
    return worst if worst is not None and is_absurd(worst.value) else None


def is_sentinel(tensor: Tensor, value: float) -> bool:
    """Whether a value is one that programs write for "missing", rather than a measurement in another scale."""
    if value >= _SURE_SENTINEL:
        return True
    whole = value == round(value) and int(value) % 100 in (0, 99)
    return value >= _LIKELY_SENTINEL and (whole and int((tensor.abs() == value).sum()) > 1)


def out_of_range(case: Case, found: Extreme, summary: str, advice: str) -> Claim | None:
    """A finite value that overflows: proven if the step is finite without its samples, or with the batch rescaled."""
    facts = [f"|{found.name}| reaches {found.value:.4g}, though it is finite"]
    samples = case.location.samples
    if not case.failure.repeatable:
        return Claim("hint", summary, tuple(facts), help=advice) if not case.grew else None
    trial = None
    shows = ""
    if samples.guilty and samples.rest_is_finite:
        extreme = _extreme_samples(found, samples)
        if extreme:
            which = f"sample{'s' * (len(extreme) > 1)} {listed(extreme)}"
            facts[0] = f"|{found.name}| reaches {found.value:.4g} in {which}, though it is finite"
        trial = case.lab.without_samples(samples.guilty, samples.size or 0)
        shows = f"{without(samples.guilty, extreme)} the step is finite"
    if trial is None or not trial.finite:
        trial = case.lab.with_batch("rescaled_batch", "the batch in the usual scale", rescaled(case.failure.batch))
        shows = "with the batch brought to the usual scale the step is finite"
    if trial.finite is False:
        return None
    return Claim("tried", summary, tuple(facts), trial=trial, shows=shows, help=advice)


def rescaled(batch: Any) -> Any:
    """The batch with tensors of large values brought back to the usual scale."""
    import torch

    from nantrap.locate.trace.storage import map_leaves

    def scale(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point() or not leaf.numel():
            return leaf
        size = float(leaf.abs().max())
        return leaf / size if is_large(size) else leaf

    return map_leaves(batch, scale)


def _extreme_samples(found: Extreme, samples: Samples) -> list[int]:
    """The guilty samples that hold a value as absurd as the largest one; none if that one lies elsewhere."""
    if found.tensor.dim() == 0 or found.tensor.shape[0] != samples.size:
        return []
    sizes = {i: float(found.tensor[i].abs().max()) for i in samples.guilty}
    return [i for i, size in sizes.items() if is_absurd(size)] if max(sizes.values()) == found.value else []


def _is_added_mask(tensor: Tensor) -> bool:
    """0 and one very negative number: a mask that is added to scores, not a measurement."""
    return float(tensor.detach().min()) <= MASKED and tensor.detach().unique().numel() <= 2
