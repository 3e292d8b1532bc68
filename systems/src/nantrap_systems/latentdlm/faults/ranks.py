"""The fault of several processes: one of them leaves a step out alone."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from nantrap_systems.latentdlm.faults.update import shares_of_nothing, skip_window
from nantrap_systems.system import Fault, Remedy, Run, standard_update


def average_in_step(model: nn.Module, optimizer: Optimizer) -> nn.Module:
    """Processes average their gradients when the optimizer steps, as with Horovod, not in the backward pass."""

    def average(stepping: Optimizer, args: Any, kwargs: Any) -> None:
        for group in stepping.param_groups:
            for parameter in group["params"]:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()

    optimizer.register_step_pre_hook(average)
    return model


def zero_and_take_part(run: Run) -> bool:
    """The remedy that holds: a process with bad gradients gives zeros, and steps with the others."""
    for parameter in run.model.parameters():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            parameter.grad.zero_()
    return standard_update(run)


RANK_SKIPS_ALONE = Fault(
    name="rank_skips_alone",
    title="one process leaves a bad step out, and the others wait for it",
    story=(
        "Two processes train together and average their gradients when the optimizer steps. One gets a NaN latent, "
        "finds its own gradients bad and continues with the next batch. The other one waits, and is answered by the "
        "first "
        "one's next step: nothing is said, but the two are a step apart from there on, and the last one has no answer."
    ),
    damage="Gradients of different steps are averaged in silence; at the end a process waits for one that has gone.",
    answer="One decision for all: both leave the step out, latent and sample are named, the weights stay equal.",
    parts={"parallel": average_in_step, "update": skip_window, "shares": shares_of_nothing},
    settings={
        "data.drop_empty": False,
        "training.train_batch_size": 16,
        "training.gradient_accumulation_steps": 1,
        "model.hidden_size": 32,
        "model.depth": 1,
    },
    remedies=(
        Remedy(
            name="zeros, together",
            story="A process with bad gradients sets them to 0 and steps with the others.",
            result="Holds: all take part. The good half of such a step counts half, and no cause is named.",
            holds=True,
            parts={"update": zero_and_take_part},
        ),
    ),
    cause="bad_input_data",
    module="data",
    processes=2,
)
