"""The autograd graph of a bad loss is still alive: walk it and judge each node by its saved tensors. No replay."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nantrap.locate.step import RootCall


def examine(loss: Tensor, call: RootCall | None) -> Any:
    """placeholder"""
    return None


def note_loss_part(loss: Tensor, call: RootCall | None) -> Any:
    """placeholder"""
    return None
