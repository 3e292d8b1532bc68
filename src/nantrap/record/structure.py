"""Nested values as JSON plus a flat table of tensors, and back, exactly: nothing is ever pickled.

One codec for checkpoints and for the bundles of incidents. Keys keep their type (an optimizer counts its parameters by
number), NumPy arrays and complex tensors come back as what they were, tied tensors are stored once. What has no form on
disk is refused by name in a checkpoint, which must be loadable, and named in a bundle, which shows what was there.
"""

from __future__ import annotations

import base64
import dataclasses
from collections import Counter, deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from nantrap.errors import FormatError, UsageError

if TYPE_CHECKING:
    from torch import Tensor


def flatten(value: Any, tensors: dict[str, Tensor], prefix: str) -> Any:
    """JSON that describes `value`; its tensors go into `tensors` under `prefix`. What has no JSON form is opaque."""
    packer = Packer(strict=False)
    described = packer.pack(value, prefix)
    tensors.update(packer.tensors)
    return described


def unflatten(described: Any, tensors: Mapping[str, Tensor]) -> Any:
    """The value that `flatten` described. Raises `FormatError` where it holds something opaque or unknown."""
    return unpack(described, tensors)


class Packer:
    """Describes values and collects their tensors by path. Holds both, and which memory it has seen already.

    Args:
        strict: refuse what has no form on disk (a checkpoint); else name its class (a bundle).
    """

    def __init__(self, *, strict: bool = True) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._strict = strict
        self._seen: dict[tuple[Any, ...], str] = {}

    def pack(self, value: Any, path: str) -> Any:
        """JSON that describes `value`; its tensors go into `tensors` under `path`."""
        import numpy as np
        import torch

        if isinstance(value, torch.Tensor):
            return self._tensor(value, path)
        if value is None or isinstance(value, (bool, str)):
            return {"value": value}
        if isinstance(value, int):
            return {"value": int(value)}
        if isinstance(value, float):
            return {"float": float(value).hex()}
        if not self._strict and dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = {spec.name: getattr(value, spec.name) for spec in dataclasses.fields(value)}
        if isinstance(value, Mapping):
            return self._mapping(value, path)
        if isinstance(value, torch.Size):
            return {"tuple": self._items(value, path)}
        if isinstance(value, (list, tuple, deque)):
            return {"tuple" if isinstance(value, tuple) else "list": self._items(value, path)}
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
        if isinstance(value, (torch.dtype, torch.device)) or (
            not self._strict and isinstance(value, (torch.layout, torch.memory_format))
        ):
            return {"torch": str(value)}
        if not self._strict:
            return {"opaque": f"{type(value).__module__}.{type(value).__qualname__}"}
        raise UsageError(
            f"{path} is a {type(value).__module__}.{type(value).__qualname__}, which has no safe form on disk: only "
            "tensors, numbers, text, lists, dicts and NumPy arrays are saved. Save what is needed to make it again"
        )

    def _items(self, values: Any, path: str) -> list[Any]:
        return [self.pack(item, f"{path}.{index}") for index, item in enumerate(values)]

    def _mapping(self, value: Mapping[Any, Any], path: str) -> Any:
        kind = "counter" if isinstance(value, Counter) else "pairs"
        if kind == "pairs" and (not self._strict or all(type(key) is str for key in value)):
            return {"dict": {str(key): self.pack(item, f"{path}.{key}") for key, item in value.items()}}
        pairs = [[self.pack(key, f"{path}.key"), self.pack(item, f"{path}.{key}")] for key, item in value.items()]
        return {kind: pairs}

    def _tensor(self, value: Tensor, path: str) -> Any:
        """Keep a tensor under its path; one memory under several names is kept once."""
        import torch

        if not self._strict:
            self.tensors[path] = value.detach()
            return {"tensor": path}
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
    import torch

    tensor = value.detach()
    if hasattr(value, "to_local") or type(value).__name__ in ("DTensor", "ShardedTensor"):
        raise UsageError(
            f"{path} is a {type(value).__name__}: this rank holds only a part of it, and a CheckpointStore writes "
            "whole tensors. Save sharded state with torch.distributed.checkpoint (nantrap audit reads it), or gather "
            "it first with torch.distributed.checkpoint.state_dict.get_model_state_dict(full_state_dict=True)"
        )
    if type(tensor) is not torch.Tensor:
        raise UsageError(f"{path} is a {type(tensor).__name__}, whose parts are not known here; save a plain tensor")
    if tensor.is_meta:
        raise UsageError(f"{path} is on the meta device: it has a shape and no values. Load or initialise it first")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise UsageError(f"{path} is {tensor.layout} {tensor.dtype}; only dense tensors are saved: use .to_dense()")
    return tensor


def unpack(described: Any, tensors: Mapping[str, Tensor] | None) -> Any:
    """The value that was described. Raises `FormatError` for anything else.

    Args:
        described: what `Packer.pack` or `flatten` gave.
        tensors: by their names; `None` puts `None` in their place, and needs no torch: what an audit shows.
    """
    if not isinstance(described, dict) or len(described) != 1:
        raise FormatError(f"not a described value: {described!r:.80}")
    ((kind, content),) = described.items()
    try:
        return _unpack(kind, content, tensors)
    except RecursionError:
        raise FormatError("a value is described in more levels than can be read") from None
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"a value of kind {kind!r:.40} is described wrongly: {error!r:.200}") from error


def _unpack(kind: str, content: Any, tensors: Mapping[str, Tensor] | None) -> Any:
    """The value of one kind; only kinds listed here are made, whatever the file asks for."""
    if kind == "value":
        return content
    if kind == "float":
        return float.fromhex(content)
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
    if kind == "opaque":
        raise FormatError(f"the bundle names a {content!s:.120} object, which has no safe form on disk")
    if kind in ("tensor", "numpy", "complex", "torch"):
        return None if tensors is None else _unpack_tensor(kind, content, tensors)
    raise FormatError(f"unknown kind of value {kind!r:.40}; it was written by a newer nantrap")


def _unpack_tensor(kind: str, content: Any, tensors: Mapping[str, Tensor]) -> Any:
    """A tensor of the bundle, or an array or a constant of PyTorch."""
    import numpy as np
    import torch

    if kind == "torch":
        return _torch_constant(content)
    name, *how = content if kind == "numpy" else (content,)
    if name not in tensors:
        raise FormatError(f"tensor {name!r:.120} is missing from the bundle")
    if kind == "numpy":
        return tensors[name].numpy().view(np.dtype(how[0])).reshape(how[1]).copy()
    return torch.view_as_complex(tensors[name]) if kind == "complex" else tensors[name]


def _torch_constant(name: str) -> Any:
    """A dtype, a layout, a memory format or a device by its name, and nothing else of PyTorch."""
    import torch

    if name.startswith("torch."):
        constant = getattr(torch, name.removeprefix("torch."), None)
        if isinstance(constant, (torch.dtype, torch.layout, torch.memory_format)):
            return constant
        raise FormatError(f"unknown constant {name!r:.120}")
    return torch.device(name)
