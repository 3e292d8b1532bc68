"""`torch.distributed.checkpoint`: a pickled plan in `.metadata`, and files in which each item is a small torch file.

The plan is read like every pickle here: without running it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nantrap.checkpoints.audit.contents import Contents, Extent, StoredTensor, UnreadableError
from nantrap.checkpoints.audit.files import ByteSource, FileEntry, FileSystem, SliceSource
from nantrap.checkpoints.audit.pickles import PickleCall, PickleError, TooLargeError, read_pickle
from nantrap.checkpoints.audit.readers import read_contents
from nantrap.checkpoints.audit.trust import NOTHING, judge, problems_of_imports
from nantrap.checkpoints.audit.verdict import CheckpointProblem, checkpoint_problem
from nantrap.incident.wording import escaped

_MOST_METADATA = 256 << 20


class Item(NamedTuple):
    """One entry of a state dict, or one shard of a tensor, in a `.distcp` file."""

    name: str
    offset: int
    length: int
    transforms: tuple[str, ...] = ()


def plan_of(files: FileSystem, metadata: FileEntry) -> tuple[dict[str, list[Item]], list[CheckpointProblem]]:
    """The items by file, from `.metadata`, and what is wrong with the plan itself."""
    try:
        with files.open(metadata.path) as source:
            if source.size > _MOST_METADATA:
                text = f".metadata holds {source.size:,} bytes; more than {_MOST_METADATA:,} are not read"
                return {}, [checkpoint_problem("NT912", text, file=metadata.name)]
            pickle = read_pickle(source.read(0, source.size))
        plan = _items(pickle.value)
    except TooLargeError as error:
        return {}, [checkpoint_problem("NT912", f".metadata was not read: {error}", file=metadata.name)]
    except PickleError as error:
        code = "NT909" if error.truncated else "NT908"
        return {}, [checkpoint_problem(code, f".metadata is not whole: {error}", file=metadata.name)]
    except OSError as error:
        return {}, [
            checkpoint_problem("NT912", f".metadata could not be read: {error.strerror or error}", file=metadata.name)
        ]
    return plan, list(problems_of_imports(judge(pickle)))


def _items(value: object) -> dict[str, list[Item]]:
    """Which bytes of which file hold what, by the metadata of a distributed checkpoint; raises if it is incomplete."""
    state = value.state if isinstance(value, PickleCall) else None
    entries = state.get("storage_data") if isinstance(state, dict) else None
    if not isinstance(entries, dict):
        raise PickleError("it holds no storage_data")
    plan: dict[str, list[Item]] = {}
    for key, info in entries.items():
        place = info.state if isinstance(info, PickleCall) else None
        label = key.state if isinstance(key, PickleCall) else None
        if not (isinstance(place, dict) and isinstance(label, dict)):
            raise PickleError("an entry of storage_data has no place")
        name, offset, length = place.get("relative_path"), place.get("offset"), place.get("length")
        if not (isinstance(name, str) and isinstance(offset, int) and isinstance(length, int)):
            raise PickleError("an entry of storage_data has no place")
        transforms = place.get("transform_descriptors") or ()
        names = tuple(map(str, transforms)) if isinstance(transforms, (list, tuple)) else ()
        item = Item(_label(label), offset, length, names)
        plan.setdefault(name, []).append(item)
    for items in plan.values():
        items.sort(key=lambda item: item.offset)
    return plan


def _label(index: dict[object, object]) -> str:
    """`layer.weight`, and `layer.weight@[4, 0]` for the shard that begins there."""
    offset = index.get("offset")
    sizes = offset if isinstance(offset, tuple) else ()
    return f"{index.get('fqn')}@{list(sizes)}" if any(sizes) else str(index.get("fqn"))


def read_items(source: ByteSource, items: Sequence[Item]) -> Contents:
    """All items of one `.distcp` file as one."""
    extents: list[Extent] = []
    imports = NOTHING
    problems: list[CheckpointProblem] = []
    numbers: list[tuple[tuple[str, ...], float]] = []
    tree: dict[str, object] = {}
    names: list[str] = []
    if sum(item.length for item in items) > 2 * source.size + (1 << 20):
        raise UnreadableError("NT908", "the items of the plan share bytes: it was changed after it was saved")
    for item in items:
        label = escaped(item.name)
        if item.transforms:
            how = escaped(", ".join(item.transforms), most=100)
            text = f"{label} is stored through {how}, which is not undone here: it was not read"
            problems.append(checkpoint_problem("NT912", text, severity="warning", tensor=item.name))
            continue
        if item.offset < 0 or item.length < 0 or item.offset + item.length > source.size:
            text = f"{label} ends after the end of the file"
            problems.append(checkpoint_problem("NT909", text, tensor=item.name))
            continue
        part = SliceSource(source, offset=item.offset, size=item.length, name=item.name)
        try:
            inner = read_contents(part)
        except UnreadableError as error:
            text = f"{label}: {error.problem.message}"
            problems.append(checkpoint_problem(error.problem.code, text, tensor=item.name))
            continue
        path = tuple(item.name.split("."))
        extents += [_renamed(extent, path) for extent in inner.extents]
        imports += inner.imports
        names += [".".join((*path, *([name] if name else []))) for name in inner.names]
        problems += inner.problems
        numbers += [((*path, *keys), value) for keys, value in inner.numbers]
        _put(tree, path, inner.tree)
    return Contents("dcp", tuple(extents), tuple(names), tree, imports, tuple(problems), tuple(numbers))


def _renamed(extent: Extent, path: tuple[str, ...]) -> Extent:
    tensors = tuple(StoredTensor((*path, *t.path), t.dtype, t.shape, t.stride, t.offset) for t in extent.tensors)
    label = f"{'.'.join(path)} ({extent.label})"
    return Extent(extent.source, extent.offset, extent.size, label, tensors, extent.crc32)


def _put(tree: dict[str, object], path: tuple[str, ...], value: object) -> None:
    """Into nested mappings, so that `optim.param_groups` is found where every optimizer has it."""
    for key in path[:-1]:
        inner = tree.setdefault(key, {})
        if not isinstance(inner, dict):
            return
        tree = inner
    tree[path[-1]] = value
