"""The entry of a replay: the user's code of today, and the model and the optimizer that the captured step needs.

There are three forms, which differ in how many arguments the function needs:

    build()              returns (model, optimizer, loss_fn)
    loss(batch)          returns the loss; the model is a variable of the function's module
    loss(model, batch)   the same, and the model is passed in

In the last two forms the optimizer is made again from what the bundle says, if it is one of `torch.optim`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nantrap.errors import NantrapError, UsageError
from nantrap.incident.wording import escaped, some_of
from nantrap.record import ReadBundle
from nantrap.record.structure import unflatten

_FORMS = (
    "it takes nothing and returns (model, optimizer, loss_fn), or takes the batch, or the model and the batch, "
    "and returns the loss"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """What a step is made of, as the user's code has it today.

    Attributes:
        model: the model; the state of the bundle is not loaded yet.
        optimizer: the optimizer, or `None` if the bundle says how to make it.
        loss_fn: from batch to loss.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    loss_fn: Callable[[Any], Any]


def entry_of(entry: str | Callable[..., Any], state: Mapping[str, Tensor]) -> Entry:
    """Call or read the entry.

    Args:
        entry: a function, or `module:function`.
        state: the tensors of the bundle, by which the model is recognised.
    """
    function = _function(entry) if isinstance(entry, str) else entry
    needed = _needed_arguments(function)
    if needed == 0:
        return _built(function)
    if needed > 2:
        raise UsageError(f"the entry needs {needed} arguments: {_FORMS}")
    model = _model_beside(function, state)
    return Entry(model, None, function if needed == 1 else functools.partial(function, model))


def optimizer_of(read: ReadBundle, model: nn.Module, state: Mapping[str, Tensor]) -> torch.optim.Optimizer:
    """The optimizer of a bundle, made again for this model; its state is not loaded yet.

    One that is not part of `torch.optim` cannot be made without the user's code. Then the step is run up to its
    gradients, which is all that a failure before the update needs.
    """
    groups = _groups(read.values.get("optimizer_parameters"), model)
    kind = _torch_optimizer(str(read.values.get("optimizer_class", "")))
    if groups is not None and kind is not None:
        made: torch.optim.Optimizer = kind(groups, lr=1e-3)  # type: ignore[call-arg]
        made.load_state_dict(unflatten(read.values["optimizer"], state))
        return made
    if read.incident.phase == "optimizer":
        raise UsageError(
            "the update itself failed, and its optimizer cannot be made from the bundle; "
            "give a function that takes nothing and returns (model, optimizer, loss_fn)"
        )
    return torch.optim.SGD(model.parameters(), lr=0.0)


def guarded_call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the user's code. What it raises is reported as the user's error, not as one of nantrap."""
    try:
        return function(*arguments)
    except NantrapError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"the entry raised {type(error).__name__}: {_words(error)}") from error


def _function(entry: str) -> Callable[..., Any]:
    """Import `module:function`; the folder in which the command runs counts, as for a script."""
    module_name, _, function_name = entry.partition(":")
    if not (module_name and function_name):
        raise UsageError(f"--entry {entry}: write it as module:function, e.g. train:build")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {_words(error)}"
        raise UsageError(f"--entry {entry}: {module_name} cannot be imported: {said}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise UsageError(f"--entry {entry}: {module_name} has no function {function_name!r}")
    return function  # type: ignore[no-any-return]


def _needed_arguments(function: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in positional and each.default is inspect.Parameter.empty for each in parameters)


def _built(build: Callable[[], Any]) -> Entry:
    """Call a function that takes nothing, and check what it made."""
    built = guarded_call(build)
    if isinstance(built, Mapping):
        built = (built.get("model"), built.get("optimizer"), built.get("loss_fn"))
    if not (isinstance(built, tuple) and len(built) == 3 and isinstance(built[0], nn.Module) and callable(built[2])):
        raise UsageError(
            "the entry must return (model, optimizer, loss_fn), with loss_fn(batch) giving the loss; "
            "or take the batch and return the loss"
        )
    return Entry(*built)


def _model_beside(function: Callable[..., Any], state: Mapping[str, Tensor]) -> nn.Module:
    """The model among the variables that a function can see: the one with the names and shapes of the bundle."""
    found: dict[int, tuple[str, nn.Module]] = {}
    others: list[str] = []
    for name, value in _visible(function):
        if not isinstance(value, nn.Module):
            continue
        if _fits(value, state):
            found.setdefault(id(value), (name, value))
        else:
            others.append(name)
    if len(found) > 1:
        found = {key: each for key, each in found.items() if each[0] == "model"} or found
    if len(found) == 1:
        return next(iter(found.values()))[1]
    help_text = "Give a function that takes nothing and returns (model, optimizer, loss_fn)"
    if found:
        names = some_of(sorted(name for name, _ in found.values()), 4)
        raise UsageError(
            f"several models in the entry's module have the parameters of the bundle: {names}. {help_text}"
        )
    seen = f" ({some_of(sorted(set(others)), 4)} has other names or shapes)" if others else ""
    raise UsageError(f"no variable of the entry's module is the model of the bundle{seen}. {help_text}")


def _visible(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Name and value of everything a function can see: its object, its closure, the globals of its module."""
    owner = getattr(function, "__self__", None)
    if owner is not None:
        yield "self", owner
        yield from getattr(owner, "__dict__", {}).items()
        yield from getattr(owner, "_modules", {}).items()
    plain = inspect.unwrap(getattr(function, "__func__", function))
    cells = getattr(plain, "__closure__", None) or ()
    for name, cell in zip(getattr(getattr(plain, "__code__", None), "co_freevars", ()), cells, strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:  # a variable that has no value yet
            continue
    yield from list(getattr(plain, "__globals__", {}).items())


def _fits(model: nn.Module, state: Mapping[str, Tensor]) -> bool:
    named: dict[str, Tensor] = {f"parameter.{name}": p for name, p in model.named_parameters()}
    named |= {f"buffer.{name}": b for name, b in model.named_buffers()}
    wanted = {name for name in state if name.startswith("parameter.")}
    return wanted <= named.keys() and all(n in state and state[n].shape == t.shape for n, t in named.items())


def _groups(names: Any, model: nn.Module) -> list[dict[str, Any]] | None:
    """The parameter groups by name, as the bundle has them; `None` if it does not say."""
    if not isinstance(names, list) or not all(isinstance(group, list) for group in names):
        return None
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if any(name not in parameters for group in names for name in group):
        return None
    return [{"params": [parameters[name] for name in group]} for group in names]


def _torch_optimizer(name: str) -> type[torch.optim.Optimizer] | None:
    """The class, if it is one of PyTorch: nothing else is made from a name in a file."""
    module, _, short = name.rpartition(".")
    kind = getattr(torch.optim, short, None) if module.startswith("torch.optim") else None
    return kind if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) else None


def _words(error: BaseException) -> str:
    return escaped(" ".join(str(error).split()), most=300)
