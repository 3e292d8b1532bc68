"""A call of a model without gradients, in an evaluation or a generation, and the way to run it again.

A call is kept by reference while it runs (`RootCall`). Objects among its arguments may be changed by it: a cache of
keys and values grows with every token. What such objects hold is noted before the call, by reference as well, so that
the call can begin again where it began. A call that gave a bad value becomes a `Failure` that can be run again.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nantrap.finite import readable, value_of
from nantrap.incident import During
from nantrap.locate.batch import tensors_of
from nantrap.locate.failure import Failure, RunFacts
from nantrap.locate.replay.replay import autocast_like
from nantrap.locate.replay.root_call import RootCall, detached
from nantrap.locate.torch_private import version_of
from nantrap.locate.twoline.guarded import Guarded
from nantrap.locate.twoline.rewriting import NotRepeatable

_MOST_OUTPUTS = 4
_MOST_HELD = 512
_DEEPEST = 4
_PLAIN = (Tensor, nn.Module, str, bytes, int, float, complex, bool, type(None), torch.dtype, torch.device, type)

Held = Sequence[tuple[Any, Any]]
"""Containers, each with a copy of what it held."""


def held_by(call: RootCall) -> Held:
    """What the objects among the arguments of a call hold, by reference; nothing for plain tensors."""
    found: list[tuple[Any, Any]] = []
    for value in itertools.chain(call.args, call.kwargs.values()):
        if not isinstance(value, _PLAIN):
            _note(value, found, 0)
    return found


def _note(value: Any, found: list[tuple[Any, Any]], depth: int) -> None:
    """Add what a container or an object holds, and what those in it hold."""
    if isinstance(value, _PLAIN) or depth > _DEEPEST or len(found) >= _MOST_HELD:
        return
    inner: Iterable[Any]
    if isinstance(value, (dict, list)):
        found.append((value, value.copy()))
        inner = value.values() if isinstance(value, dict) else value
    elif isinstance(value, tuple):
        inner = value
    elif isinstance(getattr(value, "__dict__", None), dict) and not callable(value):
        found.append((vars(value), vars(value).copy()))
        inner = vars(value).values()
    else:
        return
    for each in list(inner):
        _note(each, found, depth + 1)


def put_back(held: Held) -> None:
    """The containers hold what they held."""
    for container, content in held:
        if isinstance(container, dict):
            if container.keys() != content.keys() or any(container[key] is not content[key] for key in content):
                container.clear()
                container.update(content)
        elif len(container) != len(content) or any(a is not b for a, b in zip(container, content, strict=True)):
            container[:] = content


# ---- is its output finite?


def flag_of(output: Any) -> Tensor | None:
    """A number that is finite if the first few tensors of an output are; not read yet. `None` without such a tensor.

    A sum passes NaN and Inf on. -Inf alone gives -Inf, which is mostly a mask; a sum can overflow by itself. So a
    number that is not finite is only a reason to look.
    """
    total: Tensor | None = None
    for _, tensor in itertools.islice(tensors_of(output), _MOST_OUTPUTS):
        if not tensor.is_floating_point() or tensor.layout is not torch.strided or tensor.is_meta:
            continue
        narrow = tensor.element_size() < 4
        if tensor.element_size() == 1:
            tensor = tensor.float()  # float8 has no sum
        part = detached(tensor).sum(dtype=torch.float32 if narrow else None)
        total = part if total is None else total + part.to(total.device)
    return total


class BadOutput(NamedTuple):
    """A tensor of an output that holds NaN or +Inf, and where it is in the output."""

    path: str
    tensor: Tensor
    nan: bool


def bad_output(output: Any) -> BadOutput | None:
    """The first tensor of an output that holds NaN or +Inf; -Inf alone is mostly a mask."""
    for path, tensor in itertools.islice(tensors_of(output), _MOST_OUTPUTS):
        if not tensor.is_floating_point():
            continue
        values = readable(tensor.detach())
        if values is None or not values.numel():
            continue
        largest = value_of(values.amax())
        if largest != largest or largest == float("inf"):
            return BadOutput("output" if path == "batch" else path, tensor.detach(), largest != largest)
    return None


# ---- the call again


def failure_of_call(
    call: RootCall,
    bad: BadOutput | None,
    *,
    step: int,
    during: During,
    root: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    optimizer: Optimizer,
    held: Held,
    quiet: Callable[[], AbstractContextManager[Any]],
    run: RunFacts,
) -> Failure:
    """A call that gave a bad value, as a failure that can be run again. Runs nothing.

    Args:
        call: the call.
        bad: what it gave; `None` for a call that ended with an exception.
        step: the number of steps made so far.
        during: what it was a part of.
        root: the model.
        parameters: of the model, by name.
        optimizer: of the run.
        held: what objects among its arguments held before it.
        quiet: context in which a re-run must not communicate with other ranks.
        run: what is known of the run.
    """
    called = functools.partial(_checked, root, call.function) if call.function else call.module or root
    bound = _bound(call.function or called, call)
    path = None if bad is None else bad.path

    def forward(batch: Any) -> Tensor:
        """The largest value of the output that was bad; NaN is the largest of all."""
        put_back(held)
        args, kwargs = _arguments(bound, batch) if bound is not None else batch
        with torch.no_grad(), autocast_like(call.autocast), call.as_made(root):
            given = dict(tensors_of(called(*args, **kwargs)))
        chosen = given.get("batch" if path == "output" else path or "")
        values = next(iter(given.values()), None) if chosen is None else chosen
        if values is None:
            return torch.zeros(())
        return (values.float() if values.element_size() == 1 else values).amax()

    nan = bad is not None and bad.nan
    value = float("nan") if nan or bad is None else float("inf")
    return Failure(
        step=step,
        root=root,
        parameters=parameters,
        optimizer=optimizer,
        symptom="forward",
        loss=None if bad is None else torch.full((), value),
        loss_value=value,
        gradients={},
        restore_buffers=_restoring(root),
        forward=forward,
        batch=_plain(dict(bound.arguments) if bound is not None else (call.args, call.kwargs)),
        rng=call.rng,
        root_call=call,
        quiet=quiet,
        run=run,
        during=during,
    )


def _checked(root: nn.Module, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A function of the program again, without its side effects; one that has others is not run."""
    try:
        return Guarded(root).call(function, *args, **kwargs)
    except NotRepeatable as reason:
        raise RuntimeError(f"the function has side effects ({reason})") from None


def _bound(called: Callable[..., Any], call: RootCall) -> inspect.BoundArguments | None:
    """The arguments of a call by their names; `None` if they do not fit the signature of `forward`."""
    called = called.forward if isinstance(called, nn.Module) else called
    with contextlib.suppress(TypeError, ValueError):
        return inspect.signature(called).bind(*call.args, **call.kwargs)
    return None


def _arguments(bound: inspect.BoundArguments, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments as they are passed, with other values by name."""
    made = inspect.BoundArguments(bound.signature, batch)
    return made.args, made.kwargs


def _plain(value: Any) -> Any:
    """Copies each tensor that was made in inference mode: such a one is refused outside of it."""
    if isinstance(value, Tensor):
        return value.clone() if value.is_inference() else value
    if type(value) is dict:
        return {key: _plain(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    return value


def _restoring(root: nn.Module) -> Callable[[], None]:
    """Puts the buffers as they are now. Of a model in eval mode nothing is written, and nothing is copied back."""
    kept = [(buffer, buffer.detach().clone(), version_of(buffer)) for buffer in _buffers(root)]

    def restore() -> None:
        for index, (buffer, values, version) in enumerate(kept):
            if version_of(buffer) != version:
                with torch.no_grad():
                    buffer.copy_(values)
                kept[index] = buffer, values, version_of(buffer)

    return restore


def _buffers(root: nn.Module) -> Iterator[Tensor]:
    """The buffers that a forward pass may write."""
    return (buffer for buffer in root.buffers() if not buffer.is_meta and not buffer.is_inference())


@contextlib.contextmanager
def outside_inference_mode() -> Iterator[None]:
    """What is made here can be read and written later; nothing gets a graph."""
    with torch.inference_mode(mode=False), torch.no_grad():
        yield
