"""The tensors inside a torch pickle: what `_rebuild_tensor_v2` and its kin would build, without building."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from nantrap.checkpoints.audit.contents import StoredTensor, UnreadableError, row_major
from nantrap.checkpoints.audit.pickles import Call, Name, Persistent
from nantrap.finite import dtype_name

_STORAGE_DTYPES = {
    "Float": torch.float32, "Double": torch.float64, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool, "ComplexFloat": torch.complex64, "ComplexDouble": torch.complex128,
    "QInt8": torch.int8, "QUInt8": torch.uint8, "QInt32": torch.int32, "QUInt4x2": torch.uint8,
    "QUInt2x4": torch.uint8, "Untyped": torch.uint8,
}  # fmt: skip

_NUMPY_DTYPES = {
    "f2": torch.float16, "f4": torch.float32, "f8": torch.float64, "c8": torch.complex64, "c16": torch.complex128,
}  # fmt: skip

_REBUILD = tuple(f"torch._utils._rebuild_{name}" for name in ("tensor", "tensor_v2", "tensor_v3", "qtensor"))
_NUMPY_ARRAY = tuple(f"numpy.{core}.multiarray._reconstruct" for core in ("core", "_core"))


@dataclass(frozen=True, slots=True)
class Storage:
    """A storage by its key in the file; `first` counts the elements of the view before its begin."""

    key: str
    dtype: torch.dtype
    numel: int
    first: int = 0


@dataclass(frozen=True, slots=True)
class TensorInStorage:
    """A tensor and the storage that holds it; `raw` instead of a storage for an array inside the pickle."""

    tensor: StoredTensor
    storage: Storage | None
    raw: bytes = b""


Resolve = Callable[[object], Storage]


def storage_of(reference: object) -> Storage:
    """The storage behind a persistent id: `("storage", torch.FloatStorage, "0", "cpu", 6)`."""
    identity = reference.identity if isinstance(reference, Persistent) else None
    if not (isinstance(identity, tuple) and len(identity) >= 5 and identity[0] == "storage"):
        raise UnreadableError("NT908", "a tensor in the pickle refers to no storage")
    kind, key, numel = identity[1], identity[2], identity[4]
    if not (isinstance(kind, Name) and isinstance(numel, int)):
        raise UnreadableError("NT908", f"storage {key} in the pickle has no type or no size")
    view = identity[5] if len(identity) > 5 else None
    first = view[1] if isinstance(view, tuple) and len(view) > 1 and isinstance(view[1], int) else 0
    return Storage(str(key), dtype_of_storage(kind), numel, first)


def dtype_of_storage(kind: Name) -> torch.dtype:
    """`torch.float32` for `torch.FloatStorage`."""
    short = kind.full.rpartition(".")[2].removesuffix("Storage")
    dtype = _STORAGE_DTYPES.get(short)
    if dtype is None:
        raise UnreadableError("NT908", f"the pickle names a storage type that torch does not have: {kind.full}")
    return dtype


def find_tensors(tree: object, resolve: Resolve = storage_of) -> Iterator[TensorInStorage]:
    """Every tensor in the saved object, in the order it was saved, each container visited once.

    Iterative and with a memory of what was seen: a forged pickle may be nested a million levels deep or hold itself.
    """
    seen: set[int] = set()
    pending: list[tuple[tuple[str, ...], object]] = [((), tree)]
    while pending:
        path, node = pending.pop()
        if isinstance(node, Call):
            found = _tensor_of(node, path, resolve)
            if found is not None:
                yield found
                continue
        if isinstance(node, (str, bytes, int, float, type(None))) or id(node) in seen:
            continue
        seen.add(id(node))
        pending.extend(reversed(list(_children(path, node))))


def _children(path: tuple[str, ...], node: object) -> Iterator[tuple[tuple[str, ...], object]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield (*path, _label(key)), value
    elif isinstance(node, (list, tuple)):
        for position, value in enumerate(node):
            yield (*path, str(position)), value
    elif isinstance(node, Call):
        # A parameter, a sparse tensor or a subclass is named like what it wraps; `state` holds attributes.
        for argument in node.arguments:
            parts = argument if isinstance(argument, tuple) else (argument,)
            for part in parts:
                yield path, part
        yield path, node.state
        yield from _children(path, node.items)
        yield from _children(path, node.pairs)


def _label(key: object) -> str:
    return str(key) if isinstance(key, (str, int, float)) else type(key).__name__


def _tensor_of(call: Call, path: tuple[str, ...], resolve: Resolve) -> TensorInStorage | None:
    if call.is_call_of(*_REBUILD):
        return _torch_tensor(call, path, resolve)
    if call.is_call_of(*_NUMPY_ARRAY):
        return _numpy_array(call, path)
    return None


def _torch_tensor(call: Call, path: tuple[str, ...], resolve: Resolve) -> TensorInStorage:
    name = ".".join(path)
    if len(call.arguments) < 4:
        raise UnreadableError("NT908", f"tensor {name} is described by too few arguments")
    storage = resolve(call.arguments[0])
    first, shape, stride = call.arguments[1:4]
    dtype = storage.dtype
    if call.is_call_of("torch._utils._rebuild_tensor_v3") and len(call.arguments) > 6:
        dtype = _named_dtype(call.arguments[6], name)
    if not (isinstance(first, int) and first >= 0 and _are_sizes(shape) and _are_sizes(stride)):
        raise UnreadableError("NT908", f"tensor {name} has a shape that cannot be")
    assert isinstance(shape, tuple)
    assert isinstance(stride, tuple)
    if len(shape) != len(stride):
        raise UnreadableError("NT908", f"tensor {name} has {len(shape)} sizes and {len(stride)} strides")
    offset = (first + storage.first) * dtype.itemsize
    return TensorInStorage(StoredTensor(path, dtype, shape, stride, offset), storage)


def _named_dtype(value: object, name: str) -> torch.dtype:
    dtype = getattr(torch, value.full.removeprefix("torch."), None) if isinstance(value, Name) else None
    if not isinstance(dtype, torch.dtype):
        raise UnreadableError("NT908", f"tensor {name} has a dtype that this torch does not know: {value}")
    return dtype


def _are_sizes(value: object) -> bool:
    return isinstance(value, tuple) and all(isinstance(size, int) and size >= 0 for size in value)


def _numpy_array(call: Call, path: tuple[str, ...]) -> TensorInStorage | None:
    """A float array of numpy, which stands in the pickle: the state is (version, shape, dtype, fortran, bytes)."""
    state = call.state
    if not (isinstance(state, tuple) and len(state) == 5 and isinstance(state[4], bytes)):
        return None
    shape, described, raw = state[1], state[2], state[4]
    code = described.arguments[0] if isinstance(described, Call) and described.arguments else None
    dtype = _NUMPY_DTYPES.get(code) if isinstance(code, str) else None
    if dtype is None or not _are_sizes(shape):
        return None
    assert isinstance(shape, tuple)
    tensor = StoredTensor(path, dtype, shape, row_major(shape))
    return TensorInStorage(tensor, None, raw) if tensor.end == len(raw) else None


def checked(tensor: StoredTensor, room: int, label: str) -> StoredTensor:
    """The tensor, if it fits into the `room` bytes of its storage."""
    if tensor.offset < 0 or tensor.end > room:
        raise UnreadableError(
            "NT909",
            f"tensor {tensor.name} ({dtype_name(tensor.dtype)}, {tensor.end:,} bytes) does not fit into {label}, "
            f"which holds {room:,} bytes",
        )
    return tensor
