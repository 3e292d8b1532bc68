"""The function by which a framework computes a loss is noted, so that a failed loss can be computed again.

A script that trains by itself has the statements that computed the loss on the stack. A framework has returned from
them when it calls `backward`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from nantrap.launch.importing import when_imported
from nantrap.launch.patches import Patches
from nantrap.locate.entry import Entry, note_entry

_LIGHTNING = ("lightning.pytorch.strategies.strategy", "pytorch_lightning.strategies.strategy")
_TRANSFORMERS = "transformers.trainer"


def install(patches: Patches) -> None:
    """Wrap what is imported already, and the rest when the script imports it."""

    def lightning(module: ModuleType) -> None:
        patches.wrap(module.Strategy, "training_step", _training_step)

    def transformers(module: ModuleType) -> None:
        patches.wrap(module.Trainer, "training_step", _compute_loss)

    for name in _LIGHTNING:
        when_imported(patches, name, lightning)
    when_imported(patches, _TRANSFORMERS, transformers)


def _training_step(original: Any, strategy: Any, *args: Any, **kwargs: Any) -> Any:
    """Lightning calls `training_step(batch, batch_idx)` of the user's module."""
    module = strategy.lightning_module
    if args and module is not None and module.automatic_optimization:
        note_entry(Entry(module.training_step, args[0], after=args[1:], named=kwargs))
    return original(strategy, *args, **kwargs)


def _compute_loss(original: Any, trainer: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
    """transformers calls `compute_loss(model, inputs)`, which may take labels out of the inputs."""
    if isinstance(inputs, Mapping):
        named = dict(zip(("num_items_in_batch",), args, strict=False)) | kwargs
        note_entry(Entry(trainer.compute_loss, dict(inputs), before=(model,), named=named))
    return original(trainer, model, inputs, *args, **kwargs)
