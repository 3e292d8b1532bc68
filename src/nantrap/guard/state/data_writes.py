"""Which parameters the code of a model may write past autograd: those that its methods reach through `.data`.

A write through `self.codes.data[...] = ...` is not counted by the version of the parameter, so it cannot be noticed
when it happens. The byte code of the module's own methods shows the name before `.data`. Methods that run before
training (`__init__`, initialisation) do not count, and neither does code of PyTorch.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterable, Iterator

from torch import nn

_BEFORE_TRAINING = ("__init__", "reset_parameters", "init_weights", "_init_weights", "_reset_parameters", "extra_repr")


def reached_through_data(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """The parameters whose name is before `.data` in a method of the module that holds them, directly or below."""
    found: dict[int, nn.Parameter] = {}
    known: dict[type, frozenset[str]] = {}
    for root in modules:
        for module in root.modules():
            kind: type = type(module)
            if kind not in known:
                known[kind] = _names_before_data(kind)
            if names := known[kind]:
                found |= {id(p): p for name, p in module.named_parameters() if name.rpartition(".")[2] in names}
    return list(found.values())


def _names_before_data(kind: type) -> frozenset[str]:
    """The attribute names that stand before `.data` in the methods of a class, without those of PyTorch's classes."""
    names: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.partition(".")[0] == "torch" or base is object:
            continue
        for name, function in vars(base).items():
            if isinstance(function, types.FunctionType) and name not in _BEFORE_TRAINING:
                for code in _codes(function.__code__):
                    names.update(_before_data(code))
    return frozenset(names)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """A function's code and that of the functions inside it, where `data` is among the names."""
    if "data" in code.co_names:
        yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _before_data(code: types.CodeType) -> Iterator[str]:
    """`codes` for `self.codes.data`."""
    before = ""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if instruction.argval == "data" and before:
                yield before
            before = str(instruction.argval)
        else:
            before = ""
