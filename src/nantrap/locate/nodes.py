"""From an autograd node back to the operation that made it: its aten name, its operands, what it saved.

A node's name is the operation's name in another spelling (`NllLossBackward0`, `aten.nll_loss_forward`), its `_saved_*`
attributes are named after the operation's arguments, and its edges are in the order of the operation's tensor
arguments. So the schema in torch shows how to call the operation again; no table of nodes is needed.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nantrap.locate.torch_private import input_metadata_of, is_composite, raw_tensor, schema_of, to_copy

ACCUMULATE = "torch::autograd::AccumulateGrad"
_UNSIGNED = 1 << 63

_VIEWS_BY_SHAPE = frozenset({"view", "_unsafe_view", "reshape", "_reshape_alias", "expand"})
"""Their nodes save the shape before, not after; the node's own metadata has the one after."""

_ASSUMED_FINITE = frozenset({"add", "sub", "rsub", "where", "masked_fill", "maximum", "minimum", "clamp", "addcmul"})
"""An operand that needs no gradient is not saved by these. Unless something shows the contrary, it is assumed to be
finite."""


_DEFAULTS = {"half_to_float": False}
"""Required arguments that no node saves."""


class Argument(NamedTuple):
    """One argument of an operation's schema."""

    name: str
    is_tensor: bool
    is_list: bool
    is_optional: bool
    required: bool


class Edge(NamedTuple):
    """One input of a node: the node that made it (`None`: it needs no gradient) and which of its outputs."""

    node: Any
    output: int


def edges(node: Any) -> list[Edge]:
    """The inputs of a node, in the order of the operation's tensor arguments."""
    return [Edge(*pair) for pair in node.next_functions]


def nodes_below(*losses: Tensor) -> dict[Any, None]:
    """The nodes of the graph that a backward pass from here would visit, in the order of the graph."""
    waiting = [loss.grad_fn for loss in losses if loss.grad_fn is not None]
    seen = dict.fromkeys(waiting)
    while waiting:
        for below, _ in waiting.pop().next_functions:
            if below is not None and below not in seen:
                seen[below] = None
                waiting.append(below)
    return seen


def leaves_of(nodes: Iterable[Any]) -> list[Tensor]:
    """The leaves among the nodes of a graph."""
    found = (getattr(node, "variable", None) for node in nodes)
    return list({id(leaf): leaf for leaf in found if leaf is not None}.values())


def leaves_below(*losses: Tensor) -> list[Tensor]:
    """The leaves in whose gradients a backward pass from here would end."""
    return leaves_of(nodes_below(*losses))


@functools.lru_cache(maxsize=1024)
def operation_name(node_name: str) -> str | None:
    """`nll_loss_forward` for `NllLossBackward0`; `None` for nodes that no aten operation made."""
    stem = re.sub(r"Backward\d*$", "", node_name)
    if stem == node_name:
        return None
    snake = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[0-9])(?=[A-Z][a-z])", "_", stem).lower()
    for candidate in (snake, f"_{snake}", f"{snake}_forward", f"_{snake}_forward"):
        if _overloads(candidate):
            return candidate
    return None


@functools.lru_cache(maxsize=1024)
def _overloads(name: str) -> tuple[Any, ...]:
    """The overloads that a trace can see: composite ones fall apart into others before they reach it."""
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return ()
    found = []
    for overload_name in packet.overloads():
        qualified = f"aten::{name}" + ("" if overload_name == "default" else f".{overload_name}")
        with contextlib.suppress(RuntimeError):  # some overloads exist for TorchScript only
            composite = is_composite(qualified)
            overload = getattr(packet, overload_name)
            if not composite and not schema_of(overload).is_mutable:
                found.append(overload)
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def _arguments(overload: Any) -> tuple[Argument, ...]:
    """The arguments of an operation by its schema."""
    result = []
    for argument in schema_of(overload).arguments:
        kind = str(argument.type)
        is_tensor = "Tensor" in kind
        is_list = is_tensor and "List" in kind
        has_default = argument.has_default_value()
        optional = "Optional" in kind and not has_default
        result.append(Argument(argument.name, is_tensor, is_list, optional, not has_default))
    return tuple(result)


_names_by_kind: dict[type, tuple[tuple[str, ...], tuple[str, ...]]] = {}


def _names(kind: type) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of all saved arguments of a node type, and of its raw saved tensors."""
    if kind not in _names_by_kind:
        saved = [name for name in dir(kind) if name.startswith("_saved_")]
        raw = [name for name in dir(kind) if name.startswith("_raw_saved_") and name.removeprefix("_raw") in saved]
        _names_by_kind[kind] = tuple(name.removeprefix("_saved_") for name in saved), tuple(raw)
    return _names_by_kind[kind]


def tensor_names(kind: type) -> tuple[str, ...]:
    """The arguments a node of this kind saves as tensors, as `_raw_saved_*` attributes."""
    return _names(kind)[1]


def saved_tensors(node: Any) -> dict[str, Any]:
    """What a node saved as tensors, by argument name, as far as it can be read without side effects."""
    found: dict[str, Any] = {}
    for raw_name in tensor_names(type(node)):
        with contextlib.suppress(RuntimeError):  # freed, or changed in place since
            value = raw_tensor(node, raw_name)
            if value is not None:
                found[raw_name.removeprefix("_raw_saved_")] = value
    return found


def saved_numbers(node: Any) -> dict[str, Any]:
    """What a node saved in addition to tensors: dimensions, flags, exponents. Readable also after backward freed the
    graph."""
    tensors = {name.removeprefix("_raw_saved_") for name in tensor_names(type(node))}
    found: dict[str, Any] = {}
    for name in _names(type(node))[0]:
        if name not in tensors:
            with contextlib.suppress(RuntimeError):
                found[name] = _signed(getattr(node, f"_saved_{name}"))
    return found


def _signed(value: Any) -> Any:
    """Negative dimensions come out of a node as unsigned 64-bit numbers."""
    if isinstance(value, bool) or not isinstance(value, (int, tuple, list)):
        return value
    if isinstance(value, int):
        return value - 2 * _UNSIGNED if value >= _UNSIGNED else value
    return [_signed(item) for item in value]


def result_shape(node: Any, output: int = 0) -> tuple[tuple[int, ...], torch.dtype, torch.device]:
    """Shape, dtype and device of what the operation gave."""
    metadata = input_metadata_of(node)[output]
    return tuple(int(size) for size in metadata.shape), metadata.dtype, metadata.device


class NodeCall(NamedTuple):
    """An operation with its arguments by name, ready to run. `assumed`: operands that were not saved, assumed to be
    finite."""

    name: str
    run: Callable[..., Any]
    arguments: dict[str, Any]
    assumed: tuple[str, ...] = ()

    def __call__(self) -> Any:
        return self.run(**self.arguments)

    def as_traced(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments as a trace would have seen them."""
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        for argument in schema_of(self.run).arguments:
            if argument.kwarg_only:
                if argument.name in self.arguments:
                    keywords[argument.name] = self.arguments[argument.name]
            else:
                positional.append(self.arguments.get(argument.name, argument.default_value))
        return tuple(positional), keywords


def operand_names(node: Any) -> list[str]:
    """The argument name that belongs to each edge of a node; empty where the schema does not show it."""
    return [argument.name for argument in operands_of(node)]


def operands_of(node: Any) -> list[Argument]:
    """The argument that belongs to each edge of a node; empty where the schema does not show it."""
    name = operation_name(node.name())
    count = len(node.next_functions)
    numbers = saved_numbers(node).keys()
    saved = {n.removeprefix("_raw_saved_") for n in tensor_names(type(node))}
    known = {*numbers, *saved}
    best: list[Argument] = []
    for overload in _overloads(name) if name else ():
        arguments = _arguments(overload)
        if any(a.name in (numbers if a.is_tensor else saved) for a in arguments):
            continue  # another overload: `pow` with a number is not `pow` with a tensor
        tensors = [a for a in arguments if a.is_tensor]
        if any(a.is_list for a in tensors) and len(tensors) == 1:
            return tensors * count
        found = [a for a in tensors if not a.is_list and not _not_differentiable(a.name)]
        if len(found) >= count and len({a.name for a in arguments} & known) >= len({a.name for a in best} & known):
            best = found[:count]
    return best


def _not_differentiable(name: str) -> bool:
    return name in ("condition", "mask", "index", "indices", "running_mean", "running_var", "targets")


def call_of(node: Any, saved: Mapping[str, Any], operands: Mapping[str, Any]) -> NodeCall | None:
    """The operation behind a node, with what it saved and what is known of its operands; `None` if that is not enough.

    Args:
        node: the node.
        saved: its saved tensors by argument name.
        operands: values of its inputs by argument name, where they are known otherwise.
    """
    name = operation_name(node.name())
    if name is None:
        return None
    if name in _VIEWS_BY_SHAPE or name == "_to_copy":
        value = operands.get("self")
        if not isinstance(value, Tensor):
            return None
        shape, dtype, _ = result_shape(node)
        if name == "_to_copy":
            return NodeCall(name, to_copy, {"self": value, "dtype": dtype})
        run = torch.ops.aten.expand.default if name == "expand" else torch.ops.aten.reshape.default
        return NodeCall(name, run, {"self": value, ("size" if name == "expand" else "shape"): list(shape)})
    values = {**saved_numbers(node), **operands, **saved}
    best: NodeCall | None = None
    for overload in _overloads(name):
        call = _fill(name, overload, values)
        if call is not None and (best is None or _matches(call, values) > _matches(best, values)):
            best = call
    return best


def _matches(call: NodeCall, values: Mapping[str, Any]) -> int:
    return len(call.arguments.keys() & values.keys()) - 10 * len(call.assumed)


def _fill(name: str, overload: Any, values: Mapping[str, Any]) -> NodeCall | None:
    """The call of an operation with these values; `None` if a required argument is missing and may not be assumed."""
    arguments: dict[str, Any] = {}
    assumed: list[str] = []
    like = next((v for v in values.values() if isinstance(v, Tensor) and v.is_floating_point()), None)
    for argument in _arguments(overload):
        value = values.get(argument.name)
        if value is not None and (_is_tensors(value) == argument.is_tensor):
            arguments[argument.name] = list(value) if isinstance(value, tuple) else value
        elif value is not None:
            return None
        elif argument.name in _DEFAULTS:
            arguments[argument.name] = _DEFAULTS[argument.name]
        elif argument.is_optional:
            arguments[argument.name] = None
        elif argument.required:
            if name not in _ASSUMED_FINITE or like is None or argument.is_list:
                return None
            arguments[argument.name] = like.new_zeros(()) if argument.is_tensor else 0
            assumed.append(argument.name)
    return NodeCall(name, overload, arguments, tuple(assumed))


def _is_tensors(value: Any) -> bool:
    if isinstance(value, Tensor):
        return True
    return isinstance(value, Sequence) and any(isinstance(item, Tensor) for item in value)
