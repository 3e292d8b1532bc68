"""HDF5 files: every dataset of numbers is a field, named by its path in the file.

Only this file is read. HDF5 can refer to other files by external links, external storage and virtual datasets.
Each makes the HDF5 library open any path that the file names, so such data are counted as not read.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from nantrap.doctor.data.limits import MOST_DEEP, MOST_FIELDS, MOST_MEMBERS, refuse_expansion
from nantrap.doctor.data.readers.arrays import ArrayField, ArrayFile, kind_of, native, unjudged
from nantrap.doctor.data.rows import Array
from nantrap.doctor.data.shards import DataProblem, UnreadableDataError
from nantrap.doctor.data.stored import as_stream, open_source
from nantrap.errors import MissingExtraError
from nantrap.incident.wording import escaped

_MOST_LINKS = 2 * MOST_DEEP
_ELSEWHERE = "nothing is wrong with this file: give the files that hold the values to nantrap data as well"


@contextlib.contextmanager
def open_hdf5(path: str) -> Iterator[ArrayFile]:
    """All datasets of numbers that are in the file itself."""
    try:
        import h5py
    except ImportError as error:
        raise MissingExtraError("h5py", extra="data") from error
    with open_source(path) as source:
        if source.size == 0:
            raise UnreadableDataError("the file is empty")
        try:
            with as_stream(source) as stream, h5py.File(stream, "r") as file:
                yield replace(_Walk(h5py, file).fields_of_file(), changed=source.changed)
        except (OSError, RuntimeError, KeyError) as error:
            raise UnreadableDataError(f"not a whole HDF5 file: {error}") from error


class _Walk:
    """A walk through the groups of a file, in which each object is met once: groups may be linked into each other.

    Args:
        h5py: the module.
        file: open.
    """

    def __init__(self, h5py: Any, file: Any) -> None:
        self._h5py = h5py
        self._file = file
        self._fields: list[ArrayField] = []
        self._problems: list[DataProblem] = []
        self._seen = {self._address(file)}
        self._too_deep = self._unread = 0

    def fields_of_file(self) -> ArrayFile:
        """The datasets, and what was not read."""
        waiting = [(self._file, "", (self._address(self._file),))]
        while waiting and self._unread <= MOST_MEMBERS:
            group, path, around = waiting.pop()
            waiting += reversed(list(self._enter(group, path, around)))
        if self._too_deep:
            were = "group was" if self._too_deep == 1 else "groups were"
            self._add(f"{self._too_deep:,} {were} not read: more than {MOST_DEEP} groups are around it")
        return ArrayFile(tuple(self._fields), tuple(self._problems), unread=self._unread)

    def _enter(self, group: Any, path: str, around: tuple[Any, ...]) -> Iterator[tuple[Any, str, tuple[Any, ...]]]:
        """Note the datasets of a group; yields the groups in it, with their paths and the addresses around them."""
        for name in group:
            full = f"{path}{name}"
            if len(self._fields) + len(self._problems) >= MOST_FIELDS:
                self._unread += 1
                if self._unread > MOST_MEMBERS:
                    return
                continue
            if not isinstance(group.get(name, getlink=True), self._h5py.HardLink):
                self._check_link(group, name, full)
                continue
            item = group[name]
            address = self._address(item)
            if address in around:
                self._add(f"{full} leads back to a group around it: the links form a circle; each group was read once")
            if address in self._seen:
                continue
            self._seen.add(address)
            if isinstance(item, self._h5py.Dataset):
                self._add_dataset(full, item)
            elif isinstance(item, self._h5py.Group):
                if len(around) <= MOST_DEEP:
                    yield item, f"{full}/", (*around, address)
                else:
                    self._too_deep += 1

    def _add_dataset(self, name: str, item: Any) -> None:
        """A dataset as a field, or why it is not read."""
        if item.external or item.is_virtual:
            where = "another file" if item.external else "other datasets (it is virtual), often of other files"
            self._add(f"not read: its values are in {where}; check those files", name, help=_ELSEWHERE)
            return
        try:
            if item.size:
                refuse_expansion(item.size * item.dtype.itemsize, item.id.get_storage_size())
            self._fields.append(_field(name, item))
        except UnreadableDataError as error:
            self._add(str(error), name)

    def _check_link(self, group: Any, name: str, full: str) -> None:
        """A link by name. What it names in this file has another name, under which it is read."""
        around = group
        parts = [name]
        for _ in range(_MOST_LINKS):
            if not parts:
                return
            part = parts.pop(0)
            if not part or part == ".":
                continue
            link = around.get(part, getlink=True) if isinstance(around, self._h5py.Group) else None
            if isinstance(link, self._h5py.ExternalLink):
                to = escaped(f"{link.filename}:{link.path}", most=200)
                self._add(f"not read: a link to another file, {to}; check that file", full, help=_ELSEWHERE)
                return
            if isinstance(link, self._h5py.SoftLink):
                around = self._file if link.path.startswith("/") else around
                parts = [*link.path.split("/"), *parts]
            elif link is not None:
                around = around[part]
            else:
                text = "a link to something that the file does not have"
                self._add(text, full, help="remove the link, or write what it names")
                return
        self._add(f"not read: a link through more than {_MOST_LINKS} names, perhaps in a circle", full)

    def _address(self, item: Any) -> Any:
        about = self._h5py.h5o.get_info(item.id)
        return about.fileno, about.addr

    def _add(self, text: str, name: str | None = None, *, help: str = "") -> None:
        self._problems.append(DataProblem(text, name, help=help))


def _field(name: str, item: Any) -> ArrayField:
    """One dataset, read by ranges of samples."""
    shape = tuple(item.shape or ()) or (1,)
    used, kind = kind_of(item.dtype, shape[1:])
    size = math.prod(shape) * used.itemsize
    return ArrayField(name, used, kind, shape, _reader(item.file, name, kind), size, unjudged=unjudged(item.dtype))


def _reader(file: Any, name: str, kind: str) -> Callable[[int, int], Array]:
    """A function that reads a range of samples of one dataset."""

    def read(start: int, stop: int) -> Array:
        try:
            item = file[name]  # an open dataset takes 50 kB, so none is held
            array = np.asarray(item[start:stop] if item.shape else np.asarray(item[()])[None])
        except (OSError, RuntimeError) as error:
            raise UnreadableDataError(f"damaged at sample {start:,}: {error}") from error
        array = native(np.ascontiguousarray(array))
        return array.view(np.uint16) if kind == "half" else array

    return read
