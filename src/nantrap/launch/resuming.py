"""What a script loads before it continues: `load_state_dict` of modules, optimizers and schedules, checked once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from nantrap import finite
from nantrap.incident.wording import some_of
from nantrap.launch.loops import Loops
from nantrap.launch.patches import Patches


def install(patches: Patches, loops: Loops) -> None:
    """Remember that something was loaded; it is checked before the next step, when everything is loaded."""

    def loaded(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if not loops.is_own_call():
            for entry in loops.entries():
                optimizer = entry.optimizer()
                if self is optimizer or getattr(self, "optimizer", None) is optimizer:
                    entry.resumed = True
        return result

    def loaded_model(original: Any, self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        """Loads the state into the module, and reports parameters that are not finite after it."""
        if not loops.is_own_call():
            loops.record_abandoned()  # the script goes back to another state: what it tested before belongs to this one
        result = original(self, *args, **kwargs)
        if not loops.is_own_call():
            bad = [name for name, p in self.named_parameters() if finite.any_nonfinite([p.detach()])]
            if bad:
                loops.say(
                    f"resume: the state that was loaded into {type(self).__name__} is not finite: "
                    f"{some_of(bad)}; `nantrap audit` finds the last good checkpoint"
                )
        return result

    patches.wrap(nn.Module, "load_state_dict", loaded_model)
    patches.wrap_all(Optimizer, "load_state_dict", loaded)
    patches.wrap_all(LRScheduler, "load_state_dict", loaded)


def look_at_resume(loops: Loops, optimizer: Optimizer) -> None:
    """Before the first step after a load: does what was restored fit what was configured?"""
    entry = loops.entry(optimizer)
    if entry is None or not entry.resumed or entry.loop is None:
        return
    from nantrap.checkpoints.store.resume import check_resume, steps_made

    entry.resumed = False
    loop = entry.loop
    if loop.tally.attempted:  # the script went back to an earlier state itself, and chooses its learning rate
        return
    # a schedule that needs a metric (ReduceLROnPlateau) cannot compute its next learning rate
    scheduler = next((each for each in entry.schedules() if not isinstance(each, ReduceLROnPlateau)), None)
    rates = entry.configured if len(entry.configured) == len(optimizer.param_groups) else None
    take = loops.settings.resume_lr if rates is not None else "restored"
    for found in check_resume(
        model=loop.parts.protected.root, optimizer=optimizer, scheduler=scheduler, lr=rates, take=take
    ):
        if found.kind == "rate" and not found.data["taken"]:
            found = replace(found, help=_USE_FLAG)
        loops.say(*f"resume: {found}".split("\n"))
    loop.continue_at(steps_made(optimizer) or 0)


_USE_FLAG = (
    "start it with `nantrap run --resume-lr configured` to set the configured learning rate; do nothing if you want "
    "the restored one"
)
