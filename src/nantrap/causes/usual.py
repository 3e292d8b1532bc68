"""The usual range of what came in from outside: the failed batch against the batches of the steps before it.

Nothing is measured while training is healthy. The earlier batches are still there by reference: those of the attempts
since the last anchor, or in the two-line form the model's last inputs. They are read after a failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nantrap.causes.facts import absmax, in_words, ordinary_tensors
from nantrap.thresholds import far_outside

if TYPE_CHECKING:
    from torch import Tensor

    from nantrap.causes.case import Case

_OTHER_UNIT = 200.0
"""From here on it is not an unusual sample any more but another unit: 255 for pixels, 365 for days, 1,000 for milli."""
_BEYOND_ANY_UNIT = 1e4
"""A single value this far out is a mistake, whatever the rest of its batch looks like."""
_FEWEST = 3
"""Batches before the failed one that are needed: their largest and their median must be different ones."""
_MOST = 32
"""Batches that are read: each costs a pass over its values, and older ones say no more."""


@dataclass(frozen=True, slots=True)
class Unusual:
    """A tensor of the failed batch that lies far outside the batches before it.

    Attributes:
        name: its path in the batch.
        tensor: the tensor itself.
        value: its largest magnitude.
        largest: the largest magnitude of the batches before.
        batches: how many those are.
        samples: the share of its samples that reach beyond the usual range.
        sample: the one that lies far outside the others of its own batch, where too few batches came before; `largest`
            is then the largest magnitude of the others.
    """

    name: str
    tensor: Tensor
    value: float
    largest: float
    batches: int
    samples: float
    sample: int | None = None

    @property
    def factor(self) -> float:
        """How many times larger than ever before."""
        return self.value / self.largest

    @property
    def in_other_units(self) -> bool:
        """Whether the whole batch is in another unit, or a value is beyond any unit; else it is an unusual sample."""
        return self.factor >= _BEYOND_ANY_UNIT or (self.factor >= _OTHER_UNIT and self.samples >= 0.5)

    @property
    def words(self) -> str:
        """`batch[0] reaches 2.9e+04; in the 5 batches before it stayed within 76.2`."""
        before = f"in the {self.batches:,} batches before it stayed"
        others = (
            before if self.sample is None else f"the other samples of the batch stay (sample {self.sample} does not)"
        )
        return f"{self.name} reaches {self.value:.4g}; {others} within {self.largest:.4g}"


def unusual_inputs(case: Case) -> list[Unusual]:
    """The tensors of the batch that lie far outside the batches before it, the furthest first."""
    found = [unusual for name, tensor, before in _given(case) if (unusual := _compare(name, tensor, before))]
    return sorted(found, key=lambda unusual: -unusual.factor)


def in_usual_range(batch: Any, unusual: list[Unusual]) -> Any:
    """The batch with those tensors brought back to the largest value of the batches before."""
    from nantrap.locate.batch import with_tensor

    for one in unusual:
        batch = with_tensor(batch, one.tensor, one.tensor / one.factor)
    return batch


def were_shares(case: Case, path: str) -> bool:
    """Whether a tensor of the batch lay in [0, 1], and not at its ends only, in all batches before this one."""
    found = [dict(ordinary_tensors(batch)).get(path) for batch in _batches_before(case)]
    known = [tensor.detach() for tensor in found if tensor is not None and _is_measured(tensor)]
    inside = [float(tensor.min()) >= 0 and float(tensor.max()) <= 1 for tensor in known]
    between = any(bool(((tensor > 0) & (tensor < 1)).any()) for tensor in known)
    return len(inside) >= _FEWEST and all(inside) and between


def flags_before(case: Case, tensor: Tensor) -> bool | None:
    """Whether a tensor of the batch held 0 and 1 alone in the batches before; `None` if that is not known."""
    from nantrap.locate.trace.storage import share_memory

    same = [path for path, one in ordinary_tensors(case.failure.batch) if share_memory(one, tensor) or one is tensor]
    equal = [
        path for path, one in ordinary_tensors(case.failure.batch) if one.shape == tensor.shape and not bool(one.any())
    ]
    path = next(iter(same or equal), None)
    if path is None:
        return None
    found = [dict(ordinary_tensors(batch)).get(path) for batch in _batches_before(case)]
    known = [one.detach() for one in found if one is not None and one.numel()]
    return all(bool(((one == 0) | (one == 1)).all()) for one in known) if known else None


def _batches_before(case: Case) -> list[Any]:
    """The batches of the applied attempts before the failed one, as far as they are kept."""
    kept = [] if case.run.anchors is None else [a for a in case.run.anchors.attempts if a.applied]
    return [batch for attempt in kept if attempt.step < case.failure.step for batch in attempt.batches][-_MOST:]


def _compare(name: str, tensor: Tensor, before: list[float]) -> Unusual | None:
    """The tensor, if its largest value lies far outside those of the batches before it."""
    sizes = [size for size in before if size > 0]
    value = absmax(tensor)
    if not value:
        return None
    if len(sizes) < _FEWEST:
        return _beside_others(name, tensor, value)
    if value <= far_outside(sizes):
        return None
    largest = max(sizes)
    beyond = tensor.detach().abs() > largest
    rows = beyond.reshape(beyond.shape[0], -1).any(1) if beyond.dim() else beyond
    return Unusual(name, tensor, value, largest, len(before), float(rows.double().mean()))


def _beside_others(name: str, tensor: Tensor, value: float) -> Unusual | None:
    """The tensor, if one sample of it is beyond any unit of the others."""
    sizes = sizes_of(tensor)
    if len(sizes) < _FEWEST:
        return None
    others = sorted(sizes)[:-1]
    if not others[0] or value < _BEYOND_ANY_UNIT * others[-1]:
        return None
    return Unusual(name, tensor, value, others[-1], 0, 1 / len(sizes), sizes.index(max(sizes)))


def sizes_of(tensor: Tensor) -> list[float]:
    """The largest magnitude of each sample of a tensor."""
    if tensor.dim() == 0 or not tensor.numel():
        return []
    sizes: list[float] = tensor.detach().abs().double().reshape(len(tensor), -1).amax(1).tolist()
    return sizes


def _given(case: Case) -> Iterator[tuple[str, Tensor, list[float]]]:
    """Each tensor that came in, with the largest magnitudes of the same tensor in earlier batches."""
    failed = case.failure
    earlier = [dict(ordinary_tensors(batch)) for batch in _batches_before(case)]
    if earlier:
        for path, tensor in ordinary_tensors(failed.batch):
            if _is_measured(tensor):
                same = [one[path] for one in earlier if path in one]
                yield in_words(path), tensor, [absmax(one) for one in same if _is_measured(one)]
        return
    call = failed.root_call
    if call is None:
        return
    from nantrap.locate.twoline.caller import variable_of

    names = {id(tensor): in_words(path) for path, tensor in ordinary_tensors(failed.batch)}
    given = call.inputs()
    for position, tensor in enumerate(given):
        same = [one[position] for one in call.before if len(one) == len(given)]  # large ones are not kept
        if _is_measured(tensor) and not tensor.requires_grad:
            name = names.get(id(tensor)) or variable_of(tensor) or f"input {position + 1} of the model"
            yield name, tensor, [absmax(one) for one in same]


def _is_measured(tensor: Tensor) -> bool:
    from nantrap.finite import is_ordinary

    return tensor.is_floating_point() and is_ordinary(tensor) and tensor.numel() > 0
