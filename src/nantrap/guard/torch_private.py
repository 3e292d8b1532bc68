"""The private names of PyTorch that the guard relies on, and nothing else. Seen in torch 2.4 to 2.13.

Each has a reason why no public name will do. A name that is missing in another version gives the harmless answer.
"""

from __future__ import annotations

import contextlib
import operator
import weakref
from collections.abc import Iterable, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.accelerator import current_accelerator
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_pre_hooks

from nantrap.finite import copy_of, write

NormalisationLayer = _NormBase
"""Layers whose fused kernels write running statistics without counting the write."""

version_of = operator.attrgetter("_version")
"""How often a tensor was written in place. An attribute getter, because it runs for every parameter in every step."""

step_hooks_of = operator.attrgetter("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
"""The hooks around an optimizer's step, which may write anything."""


def count_writes(tensors: Sequence[Tensor]) -> int:
    """How often any of these tensors was written in place."""
    return sum(map(version_of, tensors))


def version(tensor: Tensor | None) -> int:
    """The version of a tensor; 0 for `None` and for an inference tensor, which has none."""
    return 0 if tensor is None or tensor.is_inference() else int(tensor._version)


_SETS_SEVERAL = "Sequence" in (torch._C._autograd._unsafe_set_version_counter.__doc__ or "")
"""torch 2.6 takes one tensor and its count, 2.9 and later lists of both."""


def counts_of(tensors: Iterable[Tensor]) -> list[tuple[Tensor, int]]:
    """How often each of these tensors was written, for `set_counts`; an inference tensor does not count."""
    return [(tensor, int(tensor._version)) for tensor in tensors if not tensor.is_inference()]


def set_counts(counts: Sequence[tuple[Tensor, int]]) -> None:
    """Count as many writes as before, so that a graph which the program still holds can be run backward."""
    if _SETS_SEVERAL:
        tensors, versions = zip(*counts, strict=True) if counts else ((), ())
        torch._C._autograd._unsafe_set_version_counter(tensors, versions)
        return
    for tensor, count in counts:
        torch._C._autograd._unsafe_set_version_counter(tensor, count)  # type: ignore[arg-type]


_scripted: weakref.WeakKeyDictionary[nn.Module, dict[str, Tensor | None]] = weakref.WeakKeyDictionary()


def buffers_of(module: nn.Module) -> dict[str, Tensor | None]:
    """The module's own table of buffers: a forward pass may replace an entry. TorchScript has none in Python, so its
    buffers are put into one; they are never replaced there."""
    if isinstance(module, torch.jit.ScriptModule):
        return _scripted.setdefault(module, dict(module.named_buffers(recurse=False)))
    return module._buffers


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """The module's own table of parameters; that of TorchScript is not in Python."""
    return {} if isinstance(module, torch.jit.ScriptModule) else module._parameters


def has_pre_hooks(optimizer: Optimizer) -> bool:
    """Whether any hook runs before the optimizer's step: it may clip by the gradient norm."""
    return bool(getattr(optimizer, "_optimizer_step_pre_hooks", None)) or bool(_global_optimizer_pre_hooks)


inside_transform = getattr(torch._C._functorch, "peek_interpreter_stack", lambda: None)
"""What `torch.func` is transforming (grad, vmap), or `None`: tensors are then wrapped, and none may be written."""


_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)


def is_dispatch_mode_on() -> bool:
    """Whether something sees every operation that runs now: a trace, a counter, selective checkpointing."""
    return bool(_dispatch_modes())


def without_transforms() -> contextlib.AbstractContextManager[None]:
    """The plain tensors again, inside a transform of `torch.func`."""
    disabled = getattr(torch._C, "_DisableFuncTorch", None)
    return contextlib.nullcontext() if disabled is None else disabled()


copy_all = torch._foreach_copy_
"""Copies a list of tensors in one call: targets, then sources."""

_PLAIN = frozenset({Tensor, nn.Parameter})


def copy_parts(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy a list of tensors in one call. Of tensors that are spread over ranks, the local parts: they are laid out
    alike, and the operation has no rule for the others."""
    if not _PLAIN.issuperset(map(type, targets)):
        targets, sources = local_parts(targets), local_parts(sources)
    try:
        torch._foreach_copy_(targets, sources)
    except Exception:  # some layouts, views and classes can only be written one by one
        for target, source in zip(targets, sources, strict=True):
            if not write(target, source) and (copy := copy_of(source)) is not None:
                target.data = copy


@torch.no_grad()
def restore_parts(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copies values into tensors and does not count it as a write, so that graphs that the program holds stay valid."""
    targets = local_parts(targets)
    counts = counts_of(targets)
    copy_parts(targets, local_parts(sources))
    set_counts(counts)


_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def restore_where(bad: Tensor, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Restore older values where `bad` is 1, and change nothing where it is 0, without reading `bad`: bit for bit, in
    a few calls for any number of tensors, and without counting it as a write.

    Values are taken as whole numbers, whose arithmetic is exact: t + bad * (s - t). With `bad` 0 or 1, NaN cannot
    enter, and the sign of a zero stays.
    """
    counts = counts_of(targets)
    groups: dict[tuple[torch.device, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        ours, theirs = _as_bits(target), _as_bits(source)
        pair = groups.setdefault((target.device, ours.dtype), ([], []))
        pair[0].append(ours)
        pair[1].append(theirs)
    for (device, bits), (now, before) in groups.items():
        difference = torch._foreach_sub(before, now)
        torch._foreach_mul_(difference, bad.to(device=device, dtype=bits))
        torch._foreach_add_(now, difference)
    set_counts(counts)


def _as_bits(tensor: Tensor) -> Tensor:
    """The memory of a tensor as whole numbers; eight bytes as two of four, so that most tensors are of one kind."""
    tensor = tensor.detach()
    if tensor.itemsize >= 8 and tensor.is_contiguous():
        return tensor.view(-1).view(torch.int32)
    return tensor.view(_BITS[tensor.itemsize])


@torch.no_grad()
def local_parts(tensors: list[Tensor]) -> list[Tensor]:
    """The parts of tensors that this rank holds; a plain tensor is its own part. They are written in place of the
    whole, and count the writes of their own; with gradients on, `to_local` would give views."""
    return [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]


def add_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Add a list of tensors to another in place, in one call."""
    torch._foreach_add_(targets, sources)


is_any_autocast_on = torch._C._is_any_autocast_enabled
"""Whether an autocast region is active on any device; the public question is asked for one device at a time."""


def autocast_state() -> tuple[str, torch.dtype] | None:
    """Device and dtype of the autocast region around this call; `None` outside of any."""
    accelerator = current_accelerator()
    for kind in ("cpu",) if accelerator is None else (accelerator.type, "cpu"):
        if torch.is_autocast_enabled(kind):
            return kind, torch.get_autocast_dtype(kind)
    return None


# ---- GradScaler


def scale_of(scaler: Any) -> Tensor | None:
    """The scale on the device, so that it can be read together with other values."""
    scale = getattr(scaler, "_scale", None)
    return scale.detach().reshape(()) if isinstance(scale, Tensor) else None


def scaler_tensors(scaler: Any) -> dict[str, Tensor] | None:
    """The scale and its growth counter on the device; `None` before the scaler made them."""
    kept = {name: getattr(scaler, name, None) for name in ("_scale", "_growth_tracker")}
    return kept if all(isinstance(value, Tensor) for value in kept.values()) else None  # type: ignore[return-value]


def forget_unscaling(scaler: Any, optimizer: Optimizer) -> None:
    """Let the scaler treat the optimizer as not unscaled yet, as before the step."""
    states = getattr(scaler, "_per_optimizer_states", None)
    if states is not None:
        states.pop(id(optimizer), None)


def force_overflow(scaler: Any, optimizer: Optimizer) -> None:
    """Let the scaler treat this step as an overflow, also where only another rank's shard overflowed."""
    states = getattr(scaler, "_per_optimizer_states", None)
    if states is not None and id(optimizer) in states:
        for flag in states[id(optimizer)].get("found_inf_per_device", {}).values():
            flag.fill_(1.0)


def take_unscaling(scaler: Any, optimizer: Optimizer) -> Any:
    """What the scaler knows of the optimizer's present step, taken out of it: as if nothing was unscaled yet."""
    return getattr(scaler, "_per_optimizer_states", {}).pop(id(optimizer), None)


def give_unscaling(scaler: Any, optimizer: Optimizer, taken: Any) -> None:
    """Give the scaler back what `take_unscaling` took."""
    if taken is not None:
        scaler._per_optimizer_states[id(optimizer)] = taken


# ---- calls of modules


def module_call(frame: FrameType) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]] | None:
    """The module that a frame calls, and with what; `None` if the frame is no call of a module."""
    if frame.f_code.co_name != "_call_impl" or frame.f_globals.get("__name__") != nn.Module.__module__:
        return None
    given = frame.f_locals
    return given["self"], given["args"], given["kwargs"]


# ---- schedulers, averages, distributed models


def inner_schedulers(scheduler: Any) -> list[Any]:
    """The schedulers inside a chained or sequential one."""
    return list(getattr(scheduler, "_schedulers", []))


def is_joining(model: nn.Module) -> bool:
    """Whether the model runs under `Join`: ranks that ran out of data answer its collectives, and no others."""
    config = getattr(model, "_join_config", None)
    return bool(getattr(config, "enable", False))


def communication_hooks(model: nn.Module) -> bool:
    """Whether a hook of the script replaces the averaging of gradients; there is no public question for it."""
    return bool(getattr(model, "_comm_hooks", ()))


def default_store() -> Any:
    """The key-value store that the process group was made with, or `None`."""
    from torch.distributed import distributed_c10d

    try:
        return distributed_c10d._get_default_store()
    except (AttributeError, RuntimeError, ValueError):
        return None


def has_compiled_part(loss: Tensor) -> bool:
    """Whether the graph of a loss runs through code of `torch.compile`, by the names of its nodes.

    A compiled backward pass gives the memory of its saved tensors away, so that it refuses to run a second time.
    """
    nodes = [loss.grad_fn]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if node is None:
            continue
        if "CompiledFunction" in node.name():
            return True
        for below, _ in node.next_functions:
            if below not in seen:
                seen.add(below)
                nodes.append(below)
    return False
