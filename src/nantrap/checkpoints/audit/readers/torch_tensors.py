"""The tensors inside a torch pickle: what `_rebuild_tensor_v2` and similar functions would build, without building it.

Also what else can hold a NaN: numpy arrays, storages saved alone, and plain Python numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from nantrap.checkpoints.audit.contents import DTYPES, DType, StoredTensor, UnreadableError, row_major
from nantrap.checkpoints.audit.known_names import LOADER
from nantrap.checkpoints.audit.pickles import Name, Persistent, PickleCall
from nantrap.checkpoints.audit.verdict import CheckpointProblem, checkpoint_problem
from nantrap.incident.wording import escaped

_STORAGE_DTYPES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
    "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool", "ComplexFloat": "complex64",
    "ComplexDouble": "complex128", "QInt8": "qint8", "QUInt8": "quint8", "QInt32": "qint32", "QUInt4x2": "quint4x2",
    "QUInt2x4": "quint2x4", "Untyped": "bytes",
}  # fmt: skip

_ALIASES = {
    "half": "float16", "float": "float32", "double": "float64", "long": "int64", "int": "int32", "short": "int16",
    "cfloat": "complex64", "cdouble": "complex128", "chalf": "complex32",
}  # fmt: skip

_REBUILD = tuple(f"torch._utils._rebuild_{name}" for name in ("tensor", "tensor_v2", "tensor_v3", "qtensor"))
_NUMPY_ARRAY = tuple(
    f"numpy.{core}.{module}._reconstruct"
    for core in ("core", "_core")
    for module in ("multiarray", "_multiarray_umath")
)
_NUMPY_BUFFER = ("numpy.core.numeric._frombuffer", "numpy._core.numeric._frombuffer")
_NUMPY_SCALAR = ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar")
_PYTHON_ARRAY = "array._array_reconstructor"

MOST_NUMBERS = 1000
"""More numbers that are not finite than this are counted and not named."""
_DEEPEST = 48
"""The most keys of a path that are kept; a forged file may nest a million."""


class Storage(NamedTuple):
    """A storage by its key in the file; `first` counts the elements of the view before its start."""

    key: str
    dtype: DType
    numel: int
    first: int = 0


class TensorInStorage(NamedTuple):
    """A tensor and the storage that holds it; `raw` instead of a storage for an array inside the pickle."""

    tensor: StoredTensor
    storage: Storage | None
    raw: bytes = b""


Resolve = Callable[[object], Storage]
Path = tuple[str, ...]


class Found:
    """Everything in a saved object that can hold a NaN.

    Attributes:
        tensors: tensors, arrays and storages.
        numbers: Python and numpy numbers that are not finite, by their path; at most `MOST_NUMBERS`.
        problems: what could not be read.
    """

    def __init__(self) -> None:
        self.tensors: list[TensorInStorage] = []
        self.numbers: list[tuple[Path, float]] = []
        self.problems: list[CheckpointProblem] = []


def storage_of(reference: object) -> Storage:
    """The storage behind a persistent id: `("storage", torch.FloatStorage, "0", "cpu", 6)`."""
    identity = reference.identity if isinstance(reference, Persistent) else None
    if not (isinstance(identity, tuple) and len(identity) >= 5 and identity[0] == "storage"):
        raise UnreadableError("NT908", "a tensor in the pickle refers to no storage")
    kind, key, numel = identity[1], identity[2], identity[4]
    if not (isinstance(kind, Name) and isinstance(numel, int) and 0 <= numel < 1 << 60):
        raise UnreadableError("NT908", f"storage {escaped(str(key))} in the pickle has no type or no size")
    view = identity[5] if len(identity) > 5 else None
    first = view[1] if isinstance(view, tuple) and len(view) > 1 and isinstance(view[1], int) else 0
    return Storage(str(key), dtype_of_storage(kind), numel, first)


def dtype_of_storage(kind: Name) -> DType:
    """`float32` for `torch.FloatStorage`."""
    short = kind.qualname.removesuffix("Storage")
    dtype = _STORAGE_DTYPES.get(short)
    if dtype is None:
        text = f"the pickle names a storage type that torch does not have: {escaped(kind.full)}"
        raise UnreadableError("NT908", text)
    return DTYPES[dtype]


def number_of(value: object) -> float | None:
    """A Python or numpy number as a float; `None` for anything else."""
    if isinstance(value, PickleCall) and value.is_call_of(*_NUMPY_SCALAR):
        array = _described(value.arguments[1] if len(value.arguments) > 1 else None, value.arguments[0], ())
        return float(array.real.reshape(-1)[0]) if array is not None and array.size else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def find_tensors(tree: object, resolve: Resolve = storage_of) -> Found:
    """Everything in the saved object that can hold a NaN, in the order it was saved, each container visited once.

    Iterative and with a memory of what was seen: a forged pickle may be nested a million levels deep or hold itself.
    """
    found = Found()
    seen: set[int] = set()
    in_tensors: set[int] = set()
    pending: list[tuple[Path, object]] = [((), tree)]
    bare: list[tuple[Path, Any]] = []
    while pending:
        path, node = pending.pop()
        if node is None or isinstance(node, (str, bytes, int, Name)):
            continue
        if isinstance(node, float):
            _add_number(found, path, node)
            continue
        if isinstance(node, PickleCall):
            if _add_tensor(found, node, path, resolve):
                in_tensors.add(id(node.arguments[0]) if node.arguments else 0)
                continue
            if node.is_call_of(*_NUMPY_SCALAR):
                number = number_of(node)
                if number is not None:
                    _add_number(found, path, number)
                continue
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Persistent) or (isinstance(node, PickleCall) and node.is_call_of(LOADER)):
            bare.append((path, node))
        else:
            pending.extend(reversed(_children(path, node)))
    for path, node in bare:
        if id(node) not in in_tensors:
            _add_storage(found, path, node, resolve)
    return found


def _add_number(found: Found, path: Path, value: float) -> None:
    if not math.isfinite(value) and len(found.numbers) < MOST_NUMBERS:
        found.numbers.append((path, value))


def _below(path: Path, key: str) -> Path:
    """The path one level deeper; what is deeper than `_DEEPEST` levels is not distinguished."""
    if len(path) < _DEEPEST:
        return (*path, key)
    return path if path[-1] == "…" else (*path, "…")


def _children(path: Path, node: object) -> list[tuple[Path, object]]:
    """What may hold tensors below a node of the saved object, with its path."""
    if isinstance(node, dict):
        return [(_below(path, _label(key)), value) for key, value in node.items() if _can_hold(value)]
    if isinstance(node, (list, tuple)):
        return [(_below(path, str(position)), value) for position, value in enumerate(node) if _can_hold(value)]
    if isinstance(node, PickleCall):
        # A parameter, a sparse tensor or a subclass is named like what it wraps; `state` holds attributes.
        parts = [part for a in node.arguments for part in (a if isinstance(a, tuple) else (a,))]
        inner = [(path, part) for part in (*parts, node.state) if _can_hold(part)]
        return [*inner, *_children(path, node.items), *_children(path, node.pairs)]
    return []


def _can_hold(value: object) -> bool:
    """Whether there is anything to look for in a value; most are finite numbers and text."""
    if isinstance(value, float):
        return not math.isfinite(value)
    return not (value is None or isinstance(value, (str, bytes, int, Name)))


def _label(key: object) -> str:
    return str(key) if isinstance(key, (str, int, float)) else type(key).__name__


def _add_tensor(found: Found, call: PickleCall, path: Path, resolve: Resolve) -> bool:
    """Note the tensor or array that the call makes; false if it makes none."""
    if call.is_call_of(*_REBUILD):
        found.tensors.append(_torch_tensor(call, path, resolve))
        return True
    if call.is_call_of(*_NUMPY_ARRAY):
        state = call.state
        if not (isinstance(state, tuple) and len(state) == 5):
            return False  # filled by a subclass, or not at all
        shape, described, raw = state[1], state[2], state[4]
        if not isinstance(raw, bytes):
            return False  # an array of objects: they are walked through
        return _add_array(found, path, raw, described, shape)
    if call.is_call_of(*_NUMPY_BUFFER) and len(call.arguments) >= 3:
        raw, described, shape = call.arguments[:3]
        return isinstance(raw, bytes) and _add_array(found, path, raw, described, shape)
    if call.is_call_of(_PYTHON_ARRAY) and len(call.arguments) == 4 and isinstance(call.arguments[3], bytes):
        code = call.arguments[1]
        kind = {"f": "<f4", "d": "<f8"}.get(code) if isinstance(code, str) else None
        size = len(call.arguments[3])
        return kind is not None and _add_array(found, path, call.arguments[3], kind, (size // int(kind[2]),))
    return False


def _torch_tensor(call: PickleCall, path: Path, resolve: Resolve) -> TensorInStorage:
    """A tensor by the arguments of its rebuild function; raises if they describe none."""
    name = escaped(".".join(path))
    if len(call.arguments) < 4:
        raise UnreadableError("NT908", f"tensor {name} is described by too few arguments")
    storage = resolve(call.arguments[0])
    first, shape, stride = call.arguments[1:4]
    dtype = storage.dtype
    if call.is_call_of("torch._utils._rebuild_tensor_v3") and len(call.arguments) > 6:
        dtype = _named_dtype(call.arguments[6], name)
    if not (isinstance(first, int) and 0 <= first < 1 << 60 and _are_sizes(shape) and _are_sizes(stride)):
        raise UnreadableError("NT908", f"tensor {name} has an impossible shape")
    assert isinstance(shape, tuple)
    assert isinstance(stride, tuple)
    if len(shape) != len(stride):
        raise UnreadableError("NT908", f"tensor {name} has {len(shape)} sizes and {len(stride)} strides")
    offset = (first + storage.first) * dtype.itemsize
    return TensorInStorage(StoredTensor(path, dtype, shape, stride, offset), storage)


def _named_dtype(value: object, name: str) -> DType:
    text = value.qualname if isinstance(value, Name) and value.module == "torch" else ""
    dtype = DTYPES.get(_ALIASES.get(text, text))
    if dtype is None:
        known = escaped(value.full) if isinstance(value, Name) else type(value).__name__
        raise UnreadableError("NT908", f"tensor {name} has a dtype that is not known here: {known}")
    return dtype


def _are_sizes(value: object) -> bool:
    return (
        isinstance(value, tuple)
        and len(value) <= 64
        and all(isinstance(size, int) and 0 <= size < 1 << 60 for size in value)
    )


def _add_array(found: Found, path: Path, raw: bytes, described: object, shape: object) -> bool:
    """A float array of numpy inside the pickle. One that cannot be read is a finding."""
    if not _are_sizes(shape):
        return True
    assert isinstance(shape, tuple)
    array = _described(raw, described, shape)
    if array is None:
        return True
    name = {"f2": "float16", "f4": "float32", "f8": "float64", "c8": "complex64", "c16": "complex128"}.get(
        f"{array.dtype.kind}{array.dtype.itemsize}"
    )
    if name is None:
        return True  # integers, text
    data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    found.tensors.append(TensorInStorage(StoredTensor(path, DTYPES[name], shape, row_major(shape)), None, data))
    return True


def _described(raw: object, described: object, shape: tuple[int, ...]) -> Any:
    """The numpy array in these bytes, if its dtype is a plain number; wider floats become float64."""
    code = described.arguments[0] if isinstance(described, PickleCall) and described.arguments else described
    if not (isinstance(code, str) and isinstance(raw, bytes)) or code.lstrip("<>|=")[:1] not in (
        "f",
        "c",
        "i",
        "u",
        "b",
    ):
        return None
    order = "<"
    if isinstance(described, PickleCall) and isinstance(described.state, tuple) and len(described.state) > 1:
        order = described.state[1] if described.state[1] in ("<", ">") else "<"
    if code[0] in "<>|=":
        order = code[0] if code[0] in "<>" else "<"
        code = code[1:]
    try:
        dtype = np.dtype(f"{order}{code}")
    except TypeError:
        return None
    if dtype.itemsize * math.prod(shape) != len(raw):
        return None
    array = np.frombuffer(raw, dtype)
    if dtype.itemsize > (16 if dtype.kind == "c" else 8):
        with np.errstate(over="ignore"):
            array = array.astype("<c16" if dtype.kind == "c" else "<f8")
    return array


def _add_storage(found: Found, path: Path, node: object, resolve: Resolve) -> None:
    """A storage that was saved alone and belongs to no tensor."""
    try:
        storage = resolve(node)
    except UnreadableError:
        return  # a module of the old format, or another reference that holds no numbers
    name = escaped(".".join(path)) or f"storage {escaped(storage.key)}"
    if storage.dtype.kind == "raw":
        text = f"{name} is an untyped storage: its {storage.numel:,} bytes have no dtype, and were not judged"
        found.problems.append(checkpoint_problem("NT912", text, severity="warning", tensor=name))
    shape = (storage.numel,)
    offset = storage.first * storage.dtype.itemsize
    found.tensors.append(TensorInStorage(StoredTensor(path, storage.dtype, shape, (1,), offset), storage))


def checked(tensor: StoredTensor, room: int, label: str) -> StoredTensor:
    """The tensor, if it fits into the `room` bytes of its storage."""
    if tensor.offset < 0 or tensor.end > room:
        raise UnreadableError(
            "NT909",
            f"tensor {escaped(tensor.name)} ({tensor.dtype.name}, {tensor.end:,} bytes) does not fit into "
            f"{escaped(label)}, which holds {room:,} bytes",
        )
    return tensor
