"""A dataset made by the user's own code: `module:dataset`. This one runs code, and the command says so.

The object is a dataset with `len` and `[]`, an iterable, or a function without arguments that returns one.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from nantrap.doctor.data.measures import Measures, joined
from nantrap.doctor.data.readers.records import measure_records
from nantrap.doctor.data.roles import DataOptions
from nantrap.doctor.data.shards import DataProblem, Scanned
from nantrap.errors import UsageError
from nantrap.incident.wording import some_of

_BATCH = 512
_NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def is_factory(path: str) -> bool:
    """Whether an argument is `module:name` and not a file."""
    return _NAME.fullmatch(path) is not None and not os.path.exists(path)


def load_object(reference: str) -> Any:
    """The object behind `module:name`; modules of the current folder are found too."""
    module_name, _, attribute = reference.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise UsageError(f"{reference}: module {module_name} has no {attribute}") from error
    except (Exception, SystemExit) as error:
        if module_name.endswith(".py") and isinstance(error, ModuleNotFoundError):
            wanted = f"{module_name.removesuffix('.py')}:{attribute}"
            raise UsageError(f"{reference}: a module is named without .py: {wanted}") from error
        raise UsageError(f"{reference}: importing {module_name} raised {described(error)}") from error
    return found


def described(error: BaseException) -> str:
    """What user code raised, in one line. A script without a main guard may call `sys.exit`."""
    text = str(error).partition("\n")[0][:200]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def make_dataset(reference: str) -> Any:
    """The dataset behind `module:name`."""
    found = load_object(reference)
    if isinstance(found, type) or (callable(found) and not hasattr(found, "__getitem__")):
        try:
            found = found()
        except (Exception, SystemExit) as error:
            raise UsageError(f"{reference}: calling it raised {described(error)}") from error
    found = _samples_of_loader(found)
    if isinstance(found, (str, bytes)) or not (hasattr(found, "__getitem__") or hasattr(found, "__iter__")):
        raise UsageError(
            f"{reference} gave an object of type {type(found).__name__}; a dataset has len and [], or can be iterated "
            "over"
        )
    if isinstance(found, Mapping) and 0 not in found:
        raise UsageError(
            f"{reference} gave a dict with the keys {some_of([str(key) for key in found], 5) or '(none)'}; "
            "a dataset has numbered samples: give one of its values"
        )
    if hasattr(found, "__getitem__") and hasattr(found, "__len__"):
        try:
            len(found)
        except (Exception, SystemExit) as error:
            raise UsageError(f"{reference}: len of the dataset raised {described(error)}") from error
    return found


def _samples_of_loader(found: Any) -> Any:
    """The dataset of a DataLoader: its samples are counted, not its batches, which change with every epoch."""
    is_loader = all(hasattr(found, name) for name in ("dataset", "collate_fn", "batch_size"))
    return found.dataset if is_loader else found


def scan(dataset: Any, options: DataOptions, advance: Callable[[int], None]) -> Scanned:
    """Measure every sample. A sample that raises is reported, and the others are read.

    Args:
        dataset: what the user's code made.
        options: what is known about the data.
        advance: called with the number of samples that were read.
    """
    made = Scanned()
    parts: dict[str | None, list[Measures]] = {}
    batch: list[tuple[int, Any]] = []
    failed: dict[str, list[int]] = {}
    for index, sample in _samples(dataset, failed):
        made.samples = index + 1
        try:
            batch.append((index, _plain(sample)))
        except Exception as error:  # a tensor without values, a layout that has no array
            failed.setdefault(described(error), []).append(index)
        if len(batch) >= _BATCH:
            measure_records(batch, options, parts)
            batch = []
        advance(made.samples)
    measure_records(batch, options, parts)
    if not made.samples and not failed:
        made.problems.append(DataProblem("the dataset is empty"))
    made.measures = [joined(found) for found in parts.values()]
    for message, indices in failed.items():
        made.samples = max(made.samples, indices[-1] + 1)
        noun = "sample" if len(indices) == 1 else "samples"
        made.problems.append(DataProblem(f"{len(indices):,} {noun} raised {message}", None, tuple(indices)))
    return made


def _samples(dataset: Any, failed: dict[str, list[int]]) -> Iterator[tuple[int, Any]]:
    """The samples of a dataset of the user's; those that raise are noted by their error."""
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        for index in range(len(dataset)):
            try:
                yield index, dataset[index]
            except GeneratorExit:
                raise
            except (Exception, SystemExit) as error:
                failed.setdefault(described(error), []).append(index)
        return
    index = -1
    try:
        for index, sample in enumerate(dataset):
            yield index, sample
    except (Exception, SystemExit) as error:  # an iterator that raised cannot continue
        failed.setdefault(described(error), []).append(index + 1)


def _plain(value: Any) -> Any:
    """Tensors as arrays, tuples and lists of tensors as fields `0`, `1`, ..."""
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        if str(tensor.layout) != "torch.strided":
            tensor = tensor.to_dense()
        if str(tensor.dtype) in ("torch.bfloat16",) or "float8" in str(tensor.dtype):
            tensor = tensor.float()
        return tensor.numpy()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {spec.name: _plain(getattr(value, spec.name)) for spec in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple) or (isinstance(value, list) and any(hasattr(each, "shape") for each in value)):
        names = getattr(value, "_fields", None) or [str(position) for position in range(len(value))]
        return {name: _plain(inner) for name, inner in zip(names, value, strict=True)}
    if hasattr(value, "mode") and hasattr(value, "size") and hasattr(value, "convert"):  # an image of Pillow
        return np.array(value)
    return value
