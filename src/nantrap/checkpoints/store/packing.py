"""The state of a run as JSON plus a flat table of tensors, and back, exactly: nothing is ever pickled.

Unlike the description in an incident's bundle, this one must be loadable: keys keep their type (an optimizer counts
its parameters by number), NumPy arrays and complex tensors come back as what they were, tied tensors are stored once,
and what has no form on disk is refused by name rather than left out.
"""

from __future__ import annotations

import base64
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nantrap.errors import FormatError, UsageError


class Packer:
    """Describes values and collects their tensors by path. Holds both, and which memory it has seen already."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._seen: dict[tuple[Any, ...], str] = {}

    def pack(self, value: Any, path: str) -> Any:
        """JSON that describes `value`; its tensors go into `tensors` under `path`."""
        if isinstance(value, Tensor):
            return self._tensor(value, path)
        if value is None or isinstance(value, (bool, str)):
            return {"value": value}
        if isinstance(value, int):
            return {"value": int(value)}
        if isinstance(value, float):
            return {"float": float(value).hex()}
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        if isinstance(value, (list, tuple, deque)):
            kind = "tuple" if isinstance(value, tuple) else "list"
            return {kind: [self.pack(item, f"{path}.{index}") for index, item in enumerate(value)]}
        if isinstance(value, (set, frozenset)):
            return {"set": [self.pack(item, path) for item in sorted(value, key=repr)]}
        if isinstance(value, (bytes, bytearray)):
            return {"bytes": base64.b64encode(bytes(value)).decode("ascii")}
        if isinstance(value, np.generic) and value.dtype.kind in "biuf":
            return self.pack(value.item(), path)
        if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
            data = np.ascontiguousarray(value)
            self._put(torch.from_numpy(data.reshape(-1).view(np.uint8).copy()), path)
            return {"numpy": [path, data.dtype.str, list(value.shape)]}
        if isinstance(value, (torch.dtype, torch.device, torch.Size)):
            return {"torch": str(value)} if not isinstance(value, torch.Size) else {"tuple": self._items(value, path)}
        raise UsageError(
            f"{path} is a {type(value).__module__}.{type(value).__qualname__}, which has no safe form on disk: only "
            "tensors, numbers, text, lists, dicts and NumPy arrays are saved. Save what is needed to make it again"
        )

    def _items(self, values: Any, path: str) -> list[Any]:
        return [self.pack(item, f"{path}.{index}") for index, item in enumerate(values)]

    def _mapping(self, value: Mapping[Any, Any], path: str) -> Any:
        kind = "counter" if isinstance(value, Counter) else "dict"
        if kind == "dict" and all(type(key) is str for key in value):
            return {"dict": {key: self.pack(item, f"{path}.{key}") for key, item in value.items()}}
        pairs = [[self.pack(key, f"{path}.key"), self.pack(item, f"{path}.{key}")] for key, item in value.items()]
        return {"counter" if kind == "counter" else "pairs": pairs}

    def _tensor(self, value: Tensor, path: str) -> Any:
        tensor = storable(value, path)
        if tensor.is_complex():
            parts = self._tensor(torch.view_as_real(tensor.resolve_conj()), path)
            return {"complex": parts["tensor"]}
        # tied weights are one memory under several names; loading ties them again by copying into the same parameter
        place = (tensor.data_ptr(), tensor.device, tensor.dtype, tuple(tensor.shape), tensor.stride())
        known = self._seen.get(place) if tensor.numel() else None
        if known is None:
            self._put(tensor, path)
            self._seen[place] = known = path
        return {"tensor": known}

    def _put(self, tensor: Tensor, path: str) -> None:
        if path in self.tensors:
            raise UsageError(f"two tensors are named {path}: a key with a dot looks like a nested one; rename it")
        self.tensors[path] = tensor


def storable(value: Tensor, path: str) -> Tensor:
    """The plain tensor to store. Sharded, sparse, quantised and meta tensors are refused by name."""
    tensor = value.detach()
    if hasattr(value, "to_local") or type(value).__name__ in ("DTensor", "ShardedTensor"):
        raise UsageError(
            f"{path} is a {type(value).__name__}: this rank holds only a part of it, and a CheckpointStore writes "
            "whole tensors. Save sharded state with torch.distributed.checkpoint (nantrap audit reads it), or gather "
            "it first with torch.distributed.checkpoint.state_dict.get_model_state_dict(full_state_dict=True)"
        )
    if type(tensor) is not Tensor:
        raise UsageError(f"{path} is a {type(tensor).__name__}, whose parts are not known here; save a plain tensor")
    if tensor.is_meta:
        raise UsageError(f"{path} is on the meta device: it has a shape and no values. Load or initialise it first")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise UsageError(f"{path} is {tensor.layout} {tensor.dtype}; only dense tensors are saved: use .to_dense()")
    return tensor


def unpack(described: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value that `Packer.pack` described. Raises `FormatError` for anything else."""
    if not isinstance(described, dict) or len(described) != 1:
        raise FormatError(f"not a described value: {described!r:.80}")
    ((kind, content),) = described.items()
    try:
        return _unpack(kind, content, tensors)
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"a value of kind {kind!r} is described wrongly: {error!r}") from error


def plain(described: Any) -> Any:
    """The same without its tensors: what an audit shows as step, rate and scale."""
    return unpack(described, _Nothing())


class _Nothing(dict[str, Tensor]):
    def __missing__(self, key: str) -> Any:
        return None


def _unpack(kind: str, content: Any, tensors: Mapping[str, Tensor]) -> Any:
    if kind == "value":
        return content
    if kind == "float":
        return float.fromhex(content)
    if kind == "tensor":
        return tensors[content]
    if kind == "dict":
        return {key: unpack(item, tensors) for key, item in content.items()}
    if kind in ("pairs", "counter"):
        pairs = {unpack(key, tensors): unpack(item, tensors) for key, item in content}
        return Counter(pairs) if kind == "counter" else pairs
    if kind == "list":
        return [unpack(item, tensors) for item in content]
    if kind == "tuple":
        return tuple(unpack(item, tensors) for item in content)
    if kind == "set":
        return {unpack(item, tensors) for item in content}
    if kind == "bytes":
        return base64.b64decode(content, validate=True)
    if kind == "numpy":
        name, dtype, shape = content
        tensor = tensors[name]
        return None if tensor is None else tensor.numpy().view(np.dtype(dtype)).reshape(shape).copy()
    if kind == "complex":
        parts = tensors[content]
        return None if parts is None else torch.view_as_complex(parts)
    if kind == "torch":
        return _torch_constant(content)
    raise FormatError(f"unknown kind of value {kind!r}; it was written by a newer nantrap")


def _torch_constant(name: str) -> Any:
    if name.startswith("torch."):
        constant = getattr(torch, name.removeprefix("torch."), None)
        if isinstance(constant, torch.dtype):
            return constant
        raise FormatError(f"unknown constant {name!r}")
    return torch.device(name)
