"""Frameworks own the loop: what has to be known of them, or kept from them, while a script trains by one. TorchScript
sees models and PyTorch as they are without a guard.

The function by which a framework computes a loss is noted, so that a failed loss can be computed again: a script that
trains by itself has those statements on the stack, a framework has returned from them when it calls `backward`. A loss
that is not finite is not logged by Lightning: EarlyStopping would end the run although the step was contained.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch

from nantrap.launch.patches import Patches, when_imported
from nantrap.launch.registry import OptimizerRegistry
from nantrap.locate.hooks import without_hooks
from nantrap.locate.twoline.caller import FrameworkCall, note_entry

_LIGHTNING = ("lightning.pytorch.strategies.strategy", "pytorch_lightning.strategies.strategy")
_LIGHTNING_MODULE = ("lightning.pytorch.core.module", "pytorch_lightning.core.module")
_TRANSFORMERS = "transformers.trainer"


def install(patches: Patches, registry: OptimizerRegistry) -> None:
    """Wrap what is imported already, and the rest when the script imports it."""
    said: set[str] = set()

    def log(original: Any, module: Any, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """Leave out a loss, or a part of one, that is not finite. Other metrics may be NaN on purpose."""
        if registry.settings.observes or not _is_bad_loss(value):
            original(module, name, value, *args, **kwargs)
        elif name not in said:
            said.add(name)
            registry.say(f"metric {name!r} is not finite in a training step: it is not logged")

    def lightning_module(module: ModuleType) -> None:
        patches.wrap(module.LightningModule, "log", log)

    def lightning(module: ModuleType) -> None:
        patches.wrap(module.Strategy, "training_step", _training_step)

    def transformers(module: ModuleType) -> None:
        patches.wrap(module.Trainer, "training_step", _compute_loss)

    def compile_script(original: Any, obj: Any, *args: Any, **kwargs: Any) -> Any:
        """TorchScript compiles or records the hooks of a module, and each function of torch that its code names."""
        models = [loop.model for loop in registry.guards]
        with patches.suspended(), without_hooks(obj, *models):
            return original(obj, *args, **kwargs)

    def export(original: Any, *args: Any, **kwargs: Any) -> Any:
        """A trace watches the calls of every module, and the compiler refuses to follow such a call."""
        for loop in registry.guards:
            loop.session.armed.stop()
        return original(*args, **kwargs)

    patches.wrap(torch.export, "export", export)
    for name in ("script", "trace", "trace_module"):
        patches.wrap(torch.jit, name, compile_script)
    for name in _LIGHTNING:
        when_imported(patches, name, lightning)
    for name in _LIGHTNING_MODULE:
        when_imported(patches, name, lightning_module)
    when_imported(patches, _TRANSFORMERS, transformers)


def _is_bad_loss(value: Any) -> bool:
    """Whether a logged value is one number with a gradient, and not finite."""
    if not isinstance(value, torch.Tensor) or not value.requires_grad or value.numel() != 1:
        return False
    return not bool(torch.isfinite(value.detach()))


def _training_step(original: Any, strategy: Any, *args: Any, **kwargs: Any) -> Any:
    """Lightning calls `training_step(batch, batch_idx)` of the user's module."""
    module = strategy.lightning_module
    if args and module is not None and module.automatic_optimization:
        note_entry(FrameworkCall(module.training_step, args[0], after=args[1:], named=kwargs))
    return original(strategy, *args, **kwargs)


def _compute_loss(original: Any, trainer: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """transformers calls `compute_loss(model, inputs)`, which may take labels out of the inputs."""
    if isinstance(inputs, Mapping):
        named = dict(zip(("num_items_in_batch",), args, strict=False)) | kwargs
        note_entry(FrameworkCall(trainer.compute_loss, dict(inputs), before=(model,), named=named))
    return original(trainer, model, inputs, *args, **kwargs)
