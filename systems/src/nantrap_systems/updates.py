"""From gradients to new weights: the update of the repaired systems, and what more than one project did instead.

standard_update        unscale, clip, step, schedule, clear
step_and_clear         the end of every update
skip_bad_norm          no step unless the norm of the gradients is finite
skip_bad_gradients     no step if any gradient is bad
zero_bad_gradients     bad gradients become 0, and the step is taken

Each takes the run after its backward passes and says whether the weights moved.
"""

from __future__ import annotations

from torch import nn

from nantrap_systems.system import Run


def standard_update(run: Run) -> bool:
    """The right order: unscale, clip, step, schedule, clear. False if the scaler skipped the step."""
    if run.scaler is not None:
        run.scaler.unscale_(run.optimizer)
    if run.max_grad_norm is not None:
        nn.utils.clip_grad_norm_(run.model.parameters(), run.max_grad_norm)
    return step_and_clear(run)


def step_and_clear(run: Run) -> bool:
    """The end of every update: step through the scaler if there is one, advance the schedule, clear gradients.

    A loss of nothing leaves every gradient `None`, and then no optimizer moves anything: the step was left out.
    """
    applied = any(parameter.grad is not None for parameter in run.model.parameters())
    if run.scaler is None:
        run.optimizer.step()
    else:
        before = run.scaler.get_scale()
        run.scaler.step(run.optimizer)
        run.scaler.update()
        applied = run.scaler.get_scale() >= before  # it is lowered exactly when the step was skipped
    if run.scheduler is not None and applied:
        run.scheduler.step()
    run.optimizer.zero_grad()
    return applied


def skip_bad_norm(run: Run) -> bool:
    """Clip, and leave the step out unless the norm is finite. The forward pass has been made by then."""
    assert run.max_grad_norm is not None
    norm = nn.utils.clip_grad_norm_(run.model.parameters(), run.max_grad_norm)
    if not norm.isfinite():
        run.optimizer.zero_grad()
        return False
    return step_and_clear(run)


def skip_bad_gradients(run: Run) -> bool:
    """If any gradient is bad, clear them all and leave the step out, with all its micro-batches."""
    gradients = [parameter.grad for parameter in run.model.parameters() if parameter.grad is not None]
    if not all(bool(gradient.isfinite().all()) for gradient in gradients):
        run.optimizer.zero_grad()
        return False
    return standard_update(run)


def zero_bad_gradients(run: Run) -> bool:
    """A parameter whose gradient is bad gets a gradient of 0, and the step is taken."""
    for parameter in run.model.parameters():
        if parameter.grad is not None and not parameter.grad.isfinite().all():
            parameter.grad.zero_()
    return standard_update(run)
