"""Averaged weights: updated after applied steps only, so that nothing bad ever enters them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from nantrap.errors import UsageError


def ema_update(ema: Any, model: nn.Module) -> Callable[[], Any] | None:
    """How this average is updated: `update_parameters(model)`, `update(model)`, `update()`, or a plain function."""
    if ema is None:
        return None
    if hasattr(ema, "update_parameters"):  # torch.optim.swa_utils.AveragedModel
        return lambda: ema.update_parameters(model)
    method = getattr(ema, "update", None)
    if callable(method):
        required = [
            parameter
            for parameter in inspect.signature(method).parameters.values()
            if parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        ]
        return (lambda: method(model)) if required else method
    if callable(ema) and not isinstance(ema, nn.Module):
        return ema  # type: ignore[no-any-return]
    raise UsageError(
        f"Guard(ema={type(ema).__name__}): expected an AveragedModel, an object with update() or update(model), or a "
        "function; a plain copy of the model does not say how it is updated"
    )


def ema_modules(ema: Any) -> list[nn.Module]:
    """The modules that hold the averaged weights, to be watched and rolled back."""
    if isinstance(ema, nn.Module):
        return [ema]
    return [
        value
        for name in ("module", "ema_model", "model", "averaged_model")
        if isinstance(value := getattr(ema, name, None), nn.Module)
    ][:1]
