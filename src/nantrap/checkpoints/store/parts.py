"""The parts of a run: their state taken out, and put back. Weights, optimizer, schedule, scaler, averages, streams."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nantrap import finite
from nantrap.errors import UsageError
from nantrap.locate import RngState, unwrap

NAMES: Final = ("model", "optimizer", "scheduler", "scaler", "ema")
"""The parts that have a `state_dict`, in the order in which they are loaded."""


def capture(parts: Mapping[str, Any], *, rng: bool) -> dict[str, Any]:
    """The state of each part by its name: live tensors, not copies.

    A model also gives its non-persistent buffers (`buffers`), as far as they are finite: a forward pass may count in
    them, and a mask of `-inf` is made by the constructor anyway.
    """
    state = {name: _state_of(name, part) for name, part in parts.items() if part is not None}
    model = parts.get("model")
    if isinstance(model, nn.Module):
        root = unwrap(model)
        saved = state["model"].keys()
        unsaved = {name: buffer for name, buffer in root.named_buffers() if name not in saved}
        state["buffers"] = {name: b for name, b in unsaved.items() if not b.is_meta and not finite.any_nonfinite([b])}
    if rng:
        streams = RngState.capture()
        state["rng"] = {
            "torch_cpu": streams.torch_cpu,
            "torch_cuda": list(streams.torch_cuda),
            "python": streams.python,
            "numpy": streams.numpy,
        }
    return state


def restore(state: Mapping[str, Any], parts: Mapping[str, Any], *, rng: bool, strict: bool, where: str) -> None:
    """Load the state into the parts. A part that the file does not have is refused before anything is changed."""
    wanted = [name for name in NAMES if parts.get(name) is not None]
    for name in wanted:
        if name not in state:
            held = ", ".join(key for key in NAMES if key in state) or "nothing"
            raise UsageError(
                f"{where} holds no {name} state (it holds {held}); leave {name}= out, or take another file"
            )
        if not callable(getattr(parts[name], "load_state_dict", None)):
            raise UsageError(f"load({name}={type(parts[name]).__name__}): it has no load_state_dict to load into")
    for name in wanted:
        try:
            _load(name, parts[name], state, strict=strict)
        except (RuntimeError, ValueError, KeyError) as error:
            raise UsageError(f"{where} does not fit the {name} it is loaded into: {error}") from error
    if rng and state.get("rng") is not None:
        restore_rng(state["rng"])


def restore_rng(saved: Mapping[str, Any]) -> None:
    """Put the random streams back; those of GPUs only where there are as many as there were."""
    cuda = tuple(saved["torch_cuda"])
    cuda = cuda if len(cuda) == torch.cuda.device_count() else ()
    RngState(saved["torch_cpu"], cuda, saved["python"], saved["numpy"]).restore()


def _state_of(name: str, part: Any) -> Any:
    if isinstance(part, nn.Module):
        return unwrap(part).state_dict() if name == "model" else part.state_dict()
    if isinstance(part, Mapping):
        return part
    if callable(getattr(part, "state_dict", None)):
        return part.state_dict()
    raise UsageError(f"save({name}={type(part).__name__}): expected something with state_dict(), or a state dict")


def _load(name: str, part: Any, state: Mapping[str, Any], *, strict: bool) -> None:
    """Load one part of a saved state into its object, with buffers and dtypes that `load_state_dict` leaves out."""
    saved = state[name]
    if name == "model" and isinstance(part, nn.Module):
        root = unwrap(part)
        root.load_state_dict(saved, strict=strict)
        _load_buffers(root, state.get("buffers", {}))
    elif name == "scaler" and not saved:
        return  # it was disabled when it was saved
    elif isinstance(part, Optimizer):
        part.load_state_dict(saved)
        _keep_dtypes(part, saved)
    else:
        part.load_state_dict(saved)


def _load_buffers(root: nn.Module, saved: Mapping[str, Tensor]) -> None:
    """Non-persistent buffers where they fit: one of another shape is a table that grows while it is used."""
    live = dict(root.named_buffers())
    with torch.no_grad():
        for name, tensor in saved.items():
            if name in live and live[name].shape == tensor.shape:
                live[name].copy_(tensor)


def _keep_dtypes(optimizer: Optimizer, saved: Mapping[str, Any]) -> None:
    """`Optimizer.load_state_dict` rounds the state to the parameter's dtype: float32 moments of bfloat16 weights."""
    order = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [n for group in saved["param_groups"] for n in group["params"]]
    for number, parameter in zip(numbers, order, strict=True):
        live = optimizer.state.get(parameter)
        if not isinstance(live, dict):
            continue
        for key, value in saved["state"].get(number, {}).items():
            if isinstance(value, Tensor) and isinstance(live.get(key), Tensor) and live[key].dtype != value.dtype:
                live[key] = value.to(device=live[key].device, copy=True)
