"""Any batch structure: its tensors by path, its size, and the batch that holds only some of its samples."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor

_MOST_LISTED: Final = 10_000


def tensors_of(batch: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Path and tensor of everything in a batch: tuple, list, dict, dataclass, namedtuple, nested."""
    if isinstance(batch, Tensor):
        yield path or "batch", batch
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from tensors_of(value, f"{path}.{key}" if path else str(key))
    elif dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        for spec in dataclasses.fields(batch):
            yield from tensors_of(getattr(batch, spec.name), f"{path}.{spec.name}" if path else spec.name)
    elif isinstance(batch, tuple) and hasattr(batch, "_fields"):
        for name in batch._fields:
            yield from tensors_of(getattr(batch, name), f"{path}.{name}" if path else name)
    elif isinstance(batch, (list, tuple)):
        for index, value in enumerate(batch):
            yield from tensors_of(value, f"{path}[{index}]")
    elif hasattr(batch, "__dict__") and type(batch).__name__ in ("BatchEncoding", "Data", "Batch"):
        yield from tensors_of(dict(batch), path)


def may_be_listed_image(inputs: Any, tensor: Tensor) -> bool:
    """Whether a tensor may be one image (channels × height × width) in a list of them: its rows are no samples then."""
    if tensor.dim() != 3 or tensor.size(0) not in (1, 3, 4):
        return False
    if isinstance(inputs, Mapping):
        return any(may_be_listed_image(value, tensor) for value in inputs.values())
    if not isinstance(inputs, (list, tuple)):
        return False
    images = [each for each in inputs if isinstance(each, Tensor)]
    listed = isinstance(inputs, list) and len(images) == len(inputs) and all(each.dim() == 3 for each in images)
    if listed and any(each is tensor for each in images):
        return True
    return any(may_be_listed_image(value, tensor) for value in inputs)


def batch_size(batch: Any) -> int | None:
    """How many samples a batch holds: the leading dimension most of its tensors share, or a list's length."""
    listed = _list_of_samples(batch)
    if listed is not None:
        return listed
    sizes = Counter(t.size(0) for _, t in tensors_of(batch) if t.dim() > 0)
    if not sizes:
        return None
    (size, count), *others = sizes.most_common()
    if others and others[0][1] == count:  # as many for each: the first tensor decides, unless it holds one row
        leading = [t.size(0) for _, t in tensors_of(batch) if t.dim() > 0 and sizes[t.size(0)] == count]
        size = next((each for each in leading if each > 1), leading[0])
    ragged = _ragged_length(batch)
    if ragged is not None and sizes[size] <= 1:
        return ragged
    return size


def samples_in(batch: Any, tensor: Tensor, outside: Tensor) -> tuple[int, ...]:
    """The samples to which the marked values of one tensor of the batch belong; empty if that is not known.

    All of them, because what is printed counts them; none of very many, which would fill the files of an incident.

    A row of a tensor is a sample, unless the batch is a list of samples: then each entry is one, and the rows of an
    image are its channels.

    Args:
        batch: the whole batch.
        tensor: one of its tensors.
        outside: marks values of that tensor.
    """
    if not outside.dim() or not bool(outside.any()):
        return ()
    size = _list_of_samples(batch)
    if size is None:
        along = _sample_dimension(outside.shape, batch_size(batch))
        if along is None:
            return ()
        rows = outside.movedim(along, 0).reshape(outside.shape[along], -1).any(dim=1).nonzero().flatten()
        return tuple(rows.tolist()) if len(rows) <= _MOST_LISTED else ()
    for part in _parts(batch):
        if isinstance(part, list) and len(part) == size:
            for position, entry in enumerate(part):
                if any(_is_same(one, tensor) for _, one in tensors_of(entry)):
                    return (position,)
    return ()


def _sample_dimension(shape: Sequence[int], size: int | None) -> int | None:
    """Which dimension of a tensor counts the samples of its batch: the first, or the only one of that size.

    The state of a recurrent network has its layers first: 1 × batch × features.
    """
    if size is None or (len(shape) > 1 and shape[0] == size == 1):
        return None
    if shape[0] == size:
        return 0
    return list(shape).index(size) if list(shape).count(size) == 1 else None


def _is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two objects are the same tensor: a trace may hold another object with the same memory."""
    strided = one.layout == other.layout == torch.strided
    return one is other or (strided and one.shape == other.shape and one.data_ptr() == other.data_ptr())


def select(batch: Any, samples: Sequence[int], size: int) -> Any:
    """The batch with only these samples. Whatever has no sample dimension is passed on unchanged."""
    if isinstance(batch, Tensor):
        if batch.dim() == 0 or batch.shape[0] != size:
            return batch
        if batch.layout != torch.strided:
            batch = batch.to_dense()
        return batch[torch.as_tensor(list(samples), device=batch.device)]
    listed = isinstance(batch, (list, tuple)) and not hasattr(batch, "_fields")
    if listed and len(batch) == size and _ragged(batch, size):
        return type(batch)(batch[i] for i in samples)
    return _rebuilt(batch, lambda part: select(part, samples, size))


def with_tensor(batch: Any, old: Tensor, new: Tensor) -> Any:
    """Copies a batch with one of its tensors replaced."""
    if isinstance(batch, Tensor):
        return new if batch is old else batch
    return _rebuilt(batch, lambda part: with_tensor(part, old, new))


def each_alone(batch: Any) -> Any:
    """Copies a batch so that no tensor object is at two places: labels that are the input ids become a view.

    A tensor is found by its identity when it is replaced, so one that is held twice would be replaced twice.
    """
    seen: set[int] = set()

    def change(part: Any) -> Any:
        if not isinstance(part, Tensor):
            return _rebuilt(part, change)
        if id(part) not in seen:
            seen.add(id(part))
            return part
        return part.detach().requires_grad_(part.requires_grad)

    found = [id(tensor) for _, tensor in tensors_of(batch)]
    return change(batch) if len(set(found)) < len(found) else batch


def _rebuilt(batch: Any, change: Callable[[Any], Any]) -> Any:
    """A container of the same kind whose parts went through `change`; any other value unchanged."""
    if isinstance(batch, Mapping):
        chosen = {key: change(value) for key, value in batch.items()}
        try:
            return type(batch)(chosen)  # type: ignore[call-arg]
        except TypeError:
            return chosen
    if dataclasses.is_dataclass(batch) and not isinstance(batch, type):
        changes = {spec.name: change(getattr(batch, spec.name)) for spec in dataclasses.fields(batch) if spec.init}
        return dataclasses.replace(batch, **changes)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(change(value) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(change(value) for value in batch)
    return batch


def _ragged(items: Sequence[Any], size: int) -> bool:
    """A list with one entry per sample, rather than a list of columns."""
    columns = [t for item in items for _, t in tensors_of(item) if t.dim() > 0]
    return not columns or not all(t.shape[0] == size for t in columns)


def _list_of_samples(batch: Any) -> int | None:
    """The length of the list with one entry per sample: tensors of unequal length, images, or one dict each."""
    for part in _parts(batch):
        if not isinstance(part, list) or len(part) < 2:
            continue
        if all(isinstance(item, Mapping) for item in part):
            return len(part)
        if all(isinstance(item, Tensor) and item.dim() > 0 for item in part):
            alike = len({(t.dtype, t.dim(), t.shape[1:]) for t in part}) == 1
            if (alike and len({t.shape[0] for t in part}) > 1) or _are_images(part):
                return len(part)
    return None


def _parts(batch: Any) -> tuple[Any, ...]:
    """What a batch consists of: the values of a dict, the entries of a tuple, or itself."""
    return tuple(batch.values()) if isinstance(batch, Mapping) else batch if isinstance(batch, tuple) else (batch,)


def _are_images(tensors: list[Tensor]) -> bool:
    """Whether these are single images, each with its channels first: of different sizes, or more than a batch of
    columns has. Four tensors of the shape 4 x 8 x 8 may as well be columns of a batch of four."""
    channels = {t.shape[0] for t in tensors}
    if any(t.dim() != 3 for t in tensors) or len(channels) > 1 or not channels <= _CHANNELS:
        return False
    return len({t.shape for t in tensors}) > 1 or len(tensors) > max(_CHANNELS)


_CHANNELS = frozenset({1, 3, 4})


def _ragged_length(batch: Any) -> int | None:
    """The number of samples of a batch that is a list of tensors of different lengths, or holds one."""
    items = batch.values() if isinstance(batch, Mapping) else batch
    if isinstance(items, Tensor) or not hasattr(items, "__iter__"):
        return None
    if isinstance(batch, list) and len(batch) > 1 and _ragged(batch, len(batch)):
        return len(batch)
    for item in items:
        if isinstance(item, list) and len(item) > 1 and all(isinstance(t, Tensor) for t in item):
            return len(item)
    return None
