"""HDF5 through h5py: every dataset of numbers is a field, named by its path in the file."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from nantrap.doctor.data.readers.arrays import ArrayField, ArrayFile, kind_of, native
from nantrap.doctor.data.rows import Array
from nantrap.doctor.data.shards import UnreadableDataError
from nantrap.doctor.data.stored import as_stream, open_source
from nantrap.errors import MissingExtraError


@contextlib.contextmanager
def open_hdf5(path: str) -> Iterator[ArrayFile]:
    """All datasets of numbers. Links out of the file are not followed."""
    try:
        import h5py
    except ImportError as error:
        raise MissingExtraError("h5py", extra="data") from error
    with open_source(path) as source:
        if source.size == 0:
            raise UnreadableDataError("the file is empty")
        try:
            with as_stream(source) as stream, h5py.File(stream, "r") as file:
                found: list[Any] = []
                file.visititems(lambda name, item: found.append(item) if isinstance(item, h5py.Dataset) else None)
                yield ArrayFile(tuple(_field(item) for item in found), changed=source.changed)
        except (OSError, RuntimeError, KeyError) as error:
            raise UnreadableDataError(f"not a whole HDF5 file: {error}") from error


def _field(item: Any) -> ArrayField:
    shape = tuple(item.shape or ()) or (1,)
    used, kind = kind_of(item.dtype, shape[1:])
    return ArrayField(item.name.lstrip("/"), used, kind, shape, _reader(item, kind), math.prod(shape) * used.itemsize)


def _reader(item: Any, kind: str) -> Callable[[int, int], Array]:
    """A function that reads a range of samples of one HDF5 dataset."""

    def read(start: int, stop: int) -> Array:
        try:
            array = np.asarray(item[start:stop] if item.shape else np.asarray(item[()])[None])
        except (OSError, RuntimeError) as error:
            raise UnreadableDataError(f"damaged at sample {start:,}: {error}") from error
        array = native(np.ascontiguousarray(array))
        return array.view(np.uint16) if kind == "half" else array

    return read
