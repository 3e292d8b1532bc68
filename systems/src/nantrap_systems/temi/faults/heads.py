"""A fault that means over the heads hide: some of them die."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nantrap.ops import beta_pmi
from nantrap_systems.system import Fault, Remedy, Run, Terms, step_and_clear
from nantrap_systems.temi.faults.caution import OPEN_HEAD, caution, far_out
from nantrap_systems.temi.faults.product import product_pmi
from nantrap_systems.temi.model import Pmi


def old_in_every_second(number: int) -> Pmi:
    """The formula was repaired in the class; every second head is still made from an older copy of it."""
    return product_pmi if number % 2 else beta_pmi


def finite_heads(values_H: Tensor) -> Tensor:
    """The mean over those heads that are not NaN."""
    return values_H.nanmean(0)


def finite_terms(losses_H: Tensor) -> Terms:
    """The same mean as terms by name: heads that are NaN are left out of the loss."""
    alive = {f"head{number}": loss for number, loss in enumerate(losses_H) if not loss.isnan()}
    return {name: loss / len(alive) for name, loss in alive.items()}


def clip_each_head(run: Run) -> bool:
    """Every head clipped by its own norm, so that no head spoils the others."""
    assert run.max_grad_norm is not None
    for head in run.model.heads:  # type: ignore[union-attr]
        nn.utils.clip_grad_norm_(head.parameters(), run.max_grad_norm)
    return step_and_clear(run)


def replace_dead_heads(run: Run) -> None:
    """A remedy: every epoch a head that is NaN gets new weights. What AdamW remembers of it is still NaN."""
    for head in run.model.heads:  # type: ignore[union-attr]
        if any(not parameter.isfinite().all() for parameter in head.parameters()):
            for layer in (layer for layer in head.modules() if isinstance(layer, nn.Linear)):
                layer.reset_parameters()
            with torch.no_grad():
                nn.init.ones_(head.scale)
                nn.init.normal_(head.direction, std=0.1)


DEAD_HEADS = Fault(
    name="dead_heads",
    title="some heads go NaN, and means over the others hide it",
    story=(
        "The same underflow, in every second head: the formula was repaired, but those heads are made from an older "
        "copy. And the loop was made robust: the loss and the pair weights are means over the heads that are not NaN, "
        "and every head is clipped by its own norm. So a bad head no longer spoils the others. It only dies."
    ),
    damage="A finite loss in every step, and half of the heads are NaN.",
    answer=(
        "Names the bad heads and the line, leaves those heads out of that step and applies it with the good ones "
        '(`Policy(bad_terms="drop")`); all heads stay alive.'
    ),
    parts={
        "pmi_of": old_in_every_second,
        "prepare": far_out,
        "over_heads": finite_heads,
        "terms": finite_terms,
        "update": clip_each_head,
    },
    settings=OPEN_HEAD,
    remedies=(
        Remedy(
            name="new weights",
            story="Every epoch a dead head gets new weights.",
            result="NaN after its first step: what AdamW and the teacher remember of it is still NaN.",
            parts={"begin_epoch": replace_dead_heads},
        ),
        caution(2e-4),
    ),
    cause="singular_gradient_at_zero",
    module="losses.*",
    op="aten.pow",
    policy={"bad_terms": "drop"},
)
