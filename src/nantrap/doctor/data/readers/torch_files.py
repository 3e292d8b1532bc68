"""Files of torch.save and safetensors files, through the checkpoint readers: pickles are read, never run.

What is a field and what is a sample follows the saved object: a dict of tensors has one field per key, a tuple one
per position, a list of tensors or of dicts is a list of samples.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nantrap.doctor.data.readers.arrays import ArrayField, ArrayFile, direct_field, memory_field
from nantrap.doctor.data.rows import Array
from nantrap.doctor.data.shards import DataProblem
from nantrap.doctor.data.stored import StoredArray, StoredObject, children, open_source, read_stored
from nantrap.incident.wording import escaped, some_of

_DTYPES = {
    "float64": "f8", "double": "f8", "float32": "f4", "float": "f4", "float16": "f2", "half": "f2", "bfloat16": "u2",
    "int64": "i8", "long": "i8", "int32": "i4", "int": "i4", "int16": "i2", "short": "i2", "int8": "i1", "uint8": "u1",
    "uint16": "u2", "uint32": "u4", "uint64": "u8", "bool": "?", "complex64": "c8", "complex128": "c16",
}  # fmt: skip
_DEEP = 8
_PAIR = 4
"""A list of up to this many arrays that differ only in kind is `[inputs, labels]`, not a list of samples."""


@contextlib.contextmanager
def open_torch(path: str) -> Iterator[ArrayFile]:
    """The fields of a .pt or safetensors file."""
    with open_source(path) as source:
        stored = read_stored(source, "safetensors" if path.lower().endswith(".safetensors") else None)
        fields: list[ArrayField] = []
        if stored.tree is None or not _walk(stored, (), stored.tree, fields, 0):
            fields = [_array_field(".".join(at) or None, array) for at, array in stored.arrays.items()]
        notes, problems = _not_read(stored, has_fields=bool(fields))
        yield ArrayFile(tuple(fields), problems, notes, changed=source.changed)


def _not_read(stored: StoredObject, *, has_fields: bool) -> tuple[tuple[str, ...], tuple[DataProblem, ...]]:
    """Notes and problems about what a pickle would run. Nothing of it is run, so what it would make is not seen."""
    if not has_fields and (stored.runs or stored.objects):
        names = some_of([escaped(name, most=120) for name in (*stored.runs, *stored.objects)], 3)
        return (), (DataProblem(f"no tensor in it can be read: loading it would run {names}, which is not done here"),)
    if stored.runs:
        names = some_of([escaped(name, most=120) for name in stored.runs], 3)
        return (f"loading it would run {names}; its tensors were read without that",), ()
    return (), ()


def _walk(stored: StoredObject, path: tuple[str, ...], node: Any, fields: list[ArrayField], depth: int) -> bool:
    """Append the fields below a node. Whether every tensor could be placed."""
    array = stored.arrays.get(path)
    if array is not None and not isinstance(node, (dict, list, tuple)):
        fields.append(_array_field(".".join(path) or None, array))
        return True
    entries = list(children(node))
    if not entries or depth > _DEEP:
        return not any(other[: len(path)] == path for other in stored.arrays)
    if isinstance(node, list) and _are_samples(stored, path, entries):
        fields.extend(_list_fields(stored, path, entries))
        return True
    if isinstance(node, tuple) and all(isinstance(value, (int, float)) for _, value in entries):
        return True
    complete = True
    for key, value in entries:
        if isinstance(value, (str, bytes, int, float, bool, type(None))):
            continue
        complete &= _walk(stored, (*path, key), value, fields, depth + 1)
    return complete


def _are_samples(stored: StoredObject, path: tuple[str, ...], entries: list[tuple[str, Any]]) -> bool:
    """Whether the entries of a list are samples, rather than the fields of a dataset."""
    arrays = [stored.arrays.get((*path, key)) for key, _ in entries]
    if all(isinstance(value, (int, float)) for _, value in entries):
        return True
    found = [array for array in arrays if array is not None]
    if len(found) < len(arrays):
        return True
    if len(found) > _PAIR:
        return True
    lengths = {array.shape[:1] for array in found}
    alike = {(len(array.shape), array.dtype, array.shape[1:]) for array in found}
    return not (len(lengths) == 1 and len(alike) == len(found) and len(found) > 1)


def _list_fields(stored: StoredObject, path: tuple[str, ...], entries: list[tuple[str, Any]]) -> Iterator[ArrayField]:
    """The fields of a list of samples: one if they are arrays or numbers, one per key if they are dicts or tuples."""
    columns: dict[tuple[str, ...], list[Any]] = {}
    for number, (key, value) in enumerate(entries):
        here = (*path, key)
        parts = list(children(value)) if here not in stored.arrays else []
        named: list[tuple[tuple[str, ...], tuple[str, ...], Any]] = [
            ((part,), (*here, part), inner) for part, inner in parts
        ] or [((), here, value)]
        for name, at, inner in named:
            column = columns.setdefault(name, [None] * number)
            if at in stored.arrays:
                column.append(stored.arrays[at])
            elif isinstance(inner, (int, float)):
                column.append(inner)
            elif isinstance(inner, (list, tuple)) and all(isinstance(each, (int, float)) for each in inner):
                column.append(np.array(inner))
            else:
                column.append(inner if isinstance(inner, str) else None)
        for column in columns.values():
            column.extend([None] * (number + 1 - len(column)))
    for name, column in columns.items():
        full = ".".join((*path, *name)) or None
        size = sum(_bytes(value) for value in column if isinstance(value, StoredArray))
        yield ArrayField(
            full, np.dtype("f4"), "float", (len(column),), _never, max(size, len(column)), samples=_loader(column)
        )


def _loader(column: list[Any]) -> Callable[[], list[Any]]:
    def load() -> list[Any]:
        return [_load(value) if isinstance(value, StoredArray) else value for value in column]

    return load


def _never(start: int, stop: int) -> Array:
    raise AssertionError("a list of samples is read as a list")


def _bytes(array: StoredArray) -> int:
    return math.prod(array.shape) * np.dtype(_DTYPES.get(array.dtype, "u1")).itemsize


def _array_field(name: str | None, array: StoredArray) -> ArrayField:
    """A tensor of a torch file as a field; read in place if its layout allows it."""
    code = _DTYPES.get(array.dtype)
    if code is None:  # float8, quantised: counted, not judged
        return ArrayField(name, np.dtype("u1"), "other", array.shape or (1,), _never, math.prod(array.shape))
    dtype = np.dtype(code)
    if _is_row_major(array):
        is_bfloat16 = array.dtype == "bfloat16"
        return direct_field(
            name, array.source, offset=array.offset, dtype=dtype, shape=array.shape, bfloat16=is_bfloat16
        )
    return memory_field(name, lambda: _load(array), dtype=np.dtype("f4") if code == "u2" else dtype, shape=array.shape)


def _load(array: StoredArray) -> Array:
    """The whole tensor as an array; bfloat16 as float32."""
    dtype = np.dtype(_DTYPES.get(array.dtype, "u1"))
    if 0 in array.shape:
        return np.empty(array.shape, dtype=dtype)
    span = 1 + sum((size - 1) * step for size, step in zip(array.shape, array.stride, strict=True))
    flat = np.frombuffer(array.source.read(array.offset, span * dtype.itemsize), dtype=dtype)
    strides = tuple(step * dtype.itemsize for step in array.stride)
    made = np.array(np.lib.stride_tricks.as_strided(flat, shape=array.shape, strides=strides))
    if array.dtype == "bfloat16":
        return (made.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return made


def _is_row_major(array: StoredArray) -> bool:
    step = 1
    for size, stride in zip(reversed(array.shape), reversed(array.stride), strict=True):
        if size > 1 and stride != step:
            return False
        step *= size
    return True
