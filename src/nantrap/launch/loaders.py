"""Which samples of the dataset a batch was made of: the indices that `DataLoader` drew for it, its epoch and number.

A loader may be read ahead (worker processes, Accelerate), so a batch is recognised by its tensors and not by being the
last one. A copy of them (`x.to(device)`, `x.float()`) has other memory; after a failure it is recognised by its values.
What the script scaled, sorted or cut after loading cannot be recognised; then no samples are named. Epoch and number of
such a batch are those of the last one that the loader gave, unless the loader is read ahead.
"""

from __future__ import annotations

import itertools
import operator
import weakref
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nantrap import finite
from nantrap.launch.patches import Patches
from nantrap.launch.torch_private import LoaderIterator, dataset_of, index_sampler_of
from nantrap.locate import RootCall, tensors_of
from nantrap.locate.torch_private import version_of

_REMEMBERED = 8
_KEPT = 2
_KEPT_BYTES = 64 * 1024 * 1024
"""Up to this size the last batches are kept alive, so that a copy of them can be recognised after a failure."""
_MOST_DATASETS = 64
_MOST_ROUNDS = 64


class _Held:
    """A batch that is kept alive, with the number of writes into its tensors when the loader gave it."""

    __slots__ = ("__weakref__", "batch", "writes")

    def __init__(self, batch: Any) -> None:
        self.batch = batch
        self.writes = _writes(batch)


@dataclass(frozen=True, slots=True)
class LoadedBatch:
    """A batch as a loader gave it.

    Attributes:
        tensors: its tensors with one row per sample, weakly.
        indices: the samples it was made of, as the loader's dataset counts them.
        original: the same as the dataset below a `Subset` or `without_samples` counts them; empty without one.
        dataset: the loader's dataset, weakly; gives `None` if it is not known any more.
        epoch: how often the script trained on the loader's dataset before.
        number: of the batch in its epoch, from 0.
        round: of the loader's iterator, another number for each.
        entries: the tensors of lists with one entry per sample, such as images of several sizes: sample, and tensor.
        held: all of it, weakly; gives `None` when later batches have taken its place.
    """

    tensors: tuple[weakref.ref[Tensor], ...]
    indices: tuple[int, ...]
    original: tuple[int, ...] = ()
    dataset: Callable[[], Any] = lambda: None
    epoch: int = 0
    number: int = 0
    round: int = 0
    entries: tuple[tuple[int, weakref.ref[Tensor]], ...] = ()
    held: Callable[[], _Held | None] = lambda: None

    def is_finite(self) -> bool:
        """Whether all of its tensors are still there and finite."""
        references = [*self.tensors, *(ref for _, ref in self.entries)]
        alive = [tensor for ref in references if (tensor := ref()) is not None]
        return len(alive) == len(references) > 0 and not finite.any_nonfinite(alive)

    def given(self) -> list[Tensor]:
        """Its tensors with one row per sample, in order; empty if one of them is gone."""
        alive = [tensor for ref in self.tensors if (tensor := ref()) is not None]
        return alive if len(alive) == len(self.tensors) else []

    def whole(self) -> Any:
        """The batch, targets and all; `None` if it is gone, or if the script has written into it since."""
        held = self.held()
        return held.batch if held is not None and _writes(held.batch) == held.writes else None

    def sample_of(self, tensor: Tensor) -> int | None:
        """The number of the sample that a tensor is a part of, where the batch is a list with one entry per sample."""
        for sample, ref in self.entries:
            entry = ref()
            if entry is not None and (entry is tensor or _same_memory(entry, tensor)):
                return sample
        return None

    def is_bad_where(self, inputs: Any) -> bool:
        """Whether these inputs are bad because the batch is, of which they were made.

        The same samples must be bad in both, and they must be bad in the values that the inputs were made of: each
        tensor of the batch with several values per sample has the shape of an input and is bad only where that input
        is. A label that is missing in the very sample in which the program divides by 0 says nothing.
        """
        size = len(self.indices)
        given = [t for _, t in tensors_of(inputs) if t.dim() and len(t) == size]
        bad = self.bad_samples()
        if not bad or bad != _bad_rows(given):
            return False
        held = [tensor for ref in self.tensors if (tensor := ref()) is not None]
        sources = [t for t in held if t.is_floating_point() and t.numel() > size] or held
        return all(any(_is_bad_within(source, one) for one in given) for source in sources)

    def bad_samples(self) -> tuple[int, ...]:
        """The samples that are not finite, as far as the batch's tensors are still there."""
        rows = _bad_rows([tensor for ref in self.tensors if (tensor := ref()) is not None])
        alive = [(sample, tensor) for sample, ref in self.entries if (tensor := ref()) is not None]
        return tuple(sorted({*rows, *(sample for sample, tensor in alive if finite.any_nonfinite([tensor]))}))


class Batches:
    """The last few batches: their tensors, weakly, and the indices they were made of. Holds the tensors of the last two
    if they are small."""

    def __init__(self) -> None:
        self.last: deque[LoadedBatch] = deque(maxlen=_REMEMBERED)
        """The last few; empty in a script without a `DataLoader`."""
        self.before_next: Callable[[], None] = lambda: None
        """Called before a loader gives its next batch."""
        self.trained: set[int] = set()
        """The rounds of loaders of whose batches steps were made."""
        self._kept: deque[_Held | None] = deque(maxlen=_KEPT)
        self._in_order: dict[int, bool] = {}

    def add(
        self,
        batch: Any,
        indices: tuple[int, ...],
        *,
        dataset: Any = None,
        epoch: int = 0,
        number: int = 0,
        round: int = 0,
    ) -> None:
        """A batch as the loader gave it."""
        tensors = [tensor for _, tensor in tensors_of(batch)]
        rows = [tensor for tensor in tensors if tensor.dim() and tensor.size(0) == len(indices)]
        listed = _entries(batch, len(indices)) if len(rows) < len(tensors) else []
        references = tuple(weakref.ref(tensor) for tensor in rows)
        entries = tuple((sample, weakref.ref(tensor)) for sample, tensor in listed)
        original = _original(dataset, indices)
        small = sum(tensor.numel() * tensor.element_size() for tensor in tensors) <= _KEPT_BYTES
        held = _Held(batch) if small else None
        self._kept.append(held)
        weak = weakref.ref(held) if held is not None else lambda: None
        self.last.append(
            LoadedBatch(references, indices, original, _weakly(dataset), epoch, number, round, entries, weak)
        )

    def find(self, inputs: Any) -> LoadedBatch | None:
        """The batch that these inputs are; `None` if they are a copy, a part, or of another loader."""
        if not self.last:
            return None
        given = [tensor for _, tensor in tensors_of(inputs)]
        for batch in reversed(self.last):
            alive = [tensor for ref in batch.tensors if (tensor := ref()) is not None]
            if any(_same_rows(one, other) for one in given for other in alive):
                return batch
            if batch.entries and any(batch.sample_of(tensor) is not None for tensor in given):
                return batch
        return None

    def recognise(self, inputs: Any) -> LoadedBatch | None:
        """Like `find`, and also where the inputs are a copy with the same values: on another device, in another type.

        Values are compared, so this is for after a failure.
        """
        found = self.find(inputs)
        if found is not None or not self.last:
            return found
        given = [tensor for _, tensor in tensors_of(inputs)]
        for batch in reversed(self.last):
            alive = [tensor for ref in batch.tensors if (tensor := ref()) is not None]
            if any(_same_values(one, other) for one in given for other in alive):
                return batch
            if batch.entries and any(_is_stacked(tensor, batch) for tensor in given):
                return batch
        return None

    def indices_of_bad(self, tensor: Tensor) -> tuple[int, ...]:
        """The indices of the batch that a bad tensor is, or was made of; nothing if the batch is bad elsewhere."""
        batch, is_given = self.position(tensor)
        return batch.indices if batch is not None and (is_given or batch.is_bad_where(tensor)) else ()

    def position(self, inputs: Any) -> tuple[LoadedBatch | None, bool]:
        """The batch that these inputs are or were made of, and whether they are the batch itself.

        Inputs that are not recognised were made of the last batch that was given, if it has as many samples and the
        script takes one at a time. A loader that is read ahead has given its second batch before the first one is
        used: then nothing is known.
        """
        if not self.last:
            return None, False
        last = self.last[-1]
        found = self.find(inputs)
        if last.round not in self._in_order:
            if len(self._in_order) >= _MOST_ROUNDS:
                self._in_order.clear()
            self._in_order[last.round] = last.number == 0 or found is last
        if found is not None:
            return found, True
        fits = any(tensor.dim() and tensor.size(0) == len(last.indices) for _, tensor in tensors_of(inputs))
        return last if fits and self._in_order[last.round] else None, False


def _writes(batch: Any) -> int:
    return sum(version_of(tensor) for _, tensor in tensors_of(batch) if not tensor.is_inference())


def _same_values(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same samples, in whatever type and on whatever device."""
    if not all(
        finite.is_plain(each) and (finite.is_ordinary(each) or each.is_floating_point()) for each in (one, other)
    ):
        return False
    if not one.dim() or not other.dim() or len(one) != len(other) or one.numel() != other.numel() or not one.numel():
        return False
    here = one.detach().reshape(len(one), -1).cpu()
    return torch.equal(_comparable(here), _comparable(other.detach().reshape(len(other), -1).cpu().to(here.dtype)))


def _bad_rows(tensors: list[Tensor]) -> tuple[int, ...]:
    """The rows in which any of these tensors is not finite."""
    found: set[int] = set()
    for tensor in tensors:
        if finite.is_ordinary(tensor) and finite.any_nonfinite([tensor.detach()]):
            bad = ~tensor.detach().isfinite().reshape(len(tensor), -1).all(dim=1)
            found.update(bad.nonzero().flatten().tolist())
    return tuple(sorted(found))


def _is_bad_within(source: Tensor, made: Tensor) -> bool:
    """Whether a tensor is bad somewhere, and only where another of the same shape is bad."""
    if not (finite.is_ordinary(source) and finite.is_ordinary(made)) or source.shape != made.shape:
        return False
    bad = ~source.detach().isfinite()
    return bool(bad.any()) and not bool((bad & made.detach().to(source.device).isfinite()).any())


def _is_stacked(tensor: Tensor, batch: LoadedBatch) -> bool:
    """Whether a tensor holds one entry of the batch's list per row, as `torch.stack(images)` does."""
    entries = [entry for _, ref in batch.entries if (entry := ref()) is not None]
    size = len(batch.indices)
    if not tensor.dim() or tensor.size(0) != size or len(entries) < size:
        return False
    alike = [entry for entry in entries if finite.is_plain(entry) and entry.shape == tensor.shape[1:]]
    return len(alike) == size and _same_values(tensor, torch.stack([entry.detach().cpu() for entry in alike]))


def _entries(batch: Any, size: int) -> list[tuple[int, Tensor]]:
    """The tensors of lists with one entry per sample, each with the number of its sample.

    Such a list has as many entries as the batch has samples. The entries are tensors of one kind or dictionaries, and
    they are no columns: those would have one row per sample each.
    """
    if isinstance(batch, Mapping):
        return [found for value in batch.values() for found in _entries(value, size)]
    if not isinstance(batch, (list, tuple)):
        return []
    if len(batch) == size > 1 and not hasattr(batch, "_fields"):
        alike = all(isinstance(item, Mapping) for item in batch) or (
            all(isinstance(item, Tensor) for item in batch) and len({(t.dtype, t.dim()) for t in batch}) == 1
        )
        listed = [(number, tensor) for number, item in enumerate(batch) for _, tensor in tensors_of(item)]
        if alike and not all(tensor.dim() and tensor.size(0) == size for _, tensor in listed):
            return listed
    return [found for item in batch if not isinstance(item, Tensor) for found in _entries(item, size)]


def _same_memory(one: Tensor, other: Tensor) -> bool:
    plain = finite.is_plain(one) and finite.is_plain(other)
    return bool(plain and one.shape == other.shape and one.numel() and one.data_ptr() == other.data_ptr())


def _comparable(tensor: Tensor) -> Tensor:
    """The values with a number in the place of NaN, which equals nothing. `Tensor.nan_to_num` would be the script's."""
    if not tensor.is_floating_point():
        return tensor
    replaced: Tensor = torch.ops.aten.nan_to_num.default(tensor, 12345.678)
    return replaced


def _same_rows(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same samples in the same order: all of them, at the same place in memory."""
    if one is other:
        return True
    same_shape = one.dim() and len(one) == len(other) and one.stride(0) == other.stride(0)
    return bool(same_shape and one.numel() and one.data_ptr() == other.data_ptr())


def install(patches: Patches, batches: Batches) -> None:
    """Note the indices of every batch."""
    epochs = Epochs(batches.trained)

    def next_index(original: Any, self: Any) -> Any:
        index = original(self)
        _drawn(self).append(index)
        return index

    def following(original: Any, self: Any) -> Any:
        """The next batch, noted with the indices that its sampler drew and with its place in the epoch."""
        batches.before_next()
        batch = original(self)
        drawn = _drawn(self)
        if drawn:
            index = drawn.popleft()
            indices = _whole_numbers(index if isinstance(index, (list, tuple)) else [index])
            if getattr(self, "_in_order", True) and indices is not None:
                epoch, number, round_ = _position(self, epochs)
                batches.add(batch, indices, dataset=dataset_of(self), epoch=epoch, number=number, round=round_)
        return batch

    def reset(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        _drawn(self).clear()  # workers that persist: what was drawn ahead in the last epoch is thrown away
        vars(self).pop("_nantrap_position", None)
        return original(self, *args, **kwargs)

    patches.wrap_all(LoaderIterator, "_reset", reset)
    patches.wrap(LoaderIterator, "_next_index", next_index)
    patches.wrap(LoaderIterator, "__next__", following)


def _whole_numbers(drawn: list[Any] | tuple[Any, ...]) -> tuple[int, ...] | None:
    """The indices that a sampler drew; `None` if they are no whole numbers. Some samplers draw those of numpy."""
    try:
        return tuple(map(operator.index, drawn))
    except TypeError:
        return None


def _drawn(iterator: Any) -> deque[Any]:
    queue: deque[Any] = vars(iterator).setdefault("_nantrap_drawn", deque())
    return queue


class Epochs:
    """How often the script trained on each dataset. Holds weak references: the `id` of one that is gone may come again.

    A pass in which no step was made, such as a validation on the same data, is no epoch.

    A dataset that cannot be referenced weakly, such as a list, is known by the sampler of its loader instead. A sampler
    that counts epochs itself (`DistributedSampler.set_epoch`) is believed where it is ahead: the script has resumed.
    """

    def __init__(self, trained: Collection[int]) -> None:
        self._trained = trained
        self._begun: dict[int, tuple[weakref.ref[Any], int, int]] = {}

    def begin(self, iterator: Any, round_: int) -> int:
        """The number of the epoch that an iterator begins, from 0. `round_` is the number of the iterator."""
        sampler = index_sampler_of(iterator)
        count = 0
        for owner in (dataset_of(iterator), sampler):
            try:
                reference = weakref.ref(owner)
            except TypeError:
                continue
            known = self._begun.get(id(owner))
            count = known[1] + (known[2] in self._trained) if known is not None and known[0]() is owner else 0
            count = max(count, _own_epoch(sampler))
            if len(self._begun) > _MOST_DATASETS:
                self._begun = {key: entry for key, entry in self._begun.items() if entry[0]() is not None}
            self._begun[id(owner)] = reference, count, round_
            break
        return count


def _own_epoch(sampler: Any) -> int:
    """The epoch that was set with `sampler.set_epoch`, or 0."""
    epoch = getattr(getattr(sampler, "sampler", sampler), "epoch", 0)
    return epoch if isinstance(epoch, int) else 0


_rounds = itertools.count(1)


def _position(iterator: Any, epochs: Epochs) -> tuple[int, int, int]:
    """Epoch and number of the batch that an iterator gives now, and the number of the iterator."""
    known = vars(iterator).get("_nantrap_position")
    if known is None:
        begun = next(_rounds)
        known = epochs.begin(iterator, begun), -1, begun
    epoch, number, round_ = known
    vars(iterator)["_nantrap_position"] = epoch, number + 1, round_
    return epoch, number + 1, round_


def _original(dataset: Any, indices: tuple[int, ...]) -> tuple[int, ...]:
    """The indices in the dataset below a `Subset` or `nantrap.without_samples`, or below several of them."""
    found, part = indices, False
    while {"dataset", "indices"} <= set(getattr(dataset, "__dict__", ())):
        found, part = tuple(int(dataset.indices[each]) for each in found), True
        dataset = dataset.dataset
    return found if part else ()


def _weakly(dataset: Any) -> Callable[[], Any]:
    """The dataset as long as it is alive. What takes no weak reference (a list) is kept, as its loader keeps it."""
    try:
        return weakref.ref(dataset)
    except TypeError:
        return lambda: dataset


def inputs_of(call: RootCall) -> Any:
    """What the model was given in a step, in all of its calls."""
    return (call.args, call.kwargs) if call.previous is None else [(each.args, each.kwargs) for each in call.chain()]
