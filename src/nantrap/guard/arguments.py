"""What `Guard` refuses, mostly when it is made: each with the name of the argument and with what was expected."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

from nantrap.errors import UsageError, path_argument
from nantrap.guard.policy import Policy


def as_modules(also: Any) -> Sequence[nn.Module]:
    """The modules beside the model: one, or a list of them."""
    modules = [also] if isinstance(also, nn.Module) else list(also) if isinstance(also, (list, tuple)) else None
    if modules is None or not all(isinstance(module, nn.Module) for module in modules):
        raise UsageError(f"Guard(also={also!r}): expected a list of torch.nn.Module, e.g. also=[loss_module]")
    return modules


def check_listeners(*, watch: Any, export: Any, alerts: Any) -> None:
    """Refuse what cannot be followed or sent, by the name of the argument."""
    if not isinstance(watch, Iterable) or not all(isinstance(name, str) for name in watch):
        raise UsageError(f"Guard(watch={watch!r}): expected names or patterns, or a dict of pattern to Limit")
    if not isinstance(export, Iterable):
        raise UsageError(f"Guard(export={export!r}): expected names of exporters in a list, such as ['tensorboard']")
    if alerts is not None and not hasattr(alerts, "stalled_after"):
        raise UsageError(f"Guard(alerts={alerts!r}): expected nantrap.Alerts(...)")


def check_arguments(*, scheduler: Any, max_grad_norm: Any, policy: Any, run_dir: Any, save_every: Any) -> None:
    """Refuse what cannot be right, by the name of the argument."""
    if policy is not None and not isinstance(policy, Policy):
        named = f"; for this one, Policy.{policy}()" if policy in ("strict", "observe") else ""
        raise UsageError(f"Guard(policy={policy!r}): expected a nantrap.Policy{named}")
    number = isinstance(max_grad_norm, (int, float)) and not isinstance(max_grad_norm, bool)
    if max_grad_norm is not None and not (number and max_grad_norm > 0):
        raise UsageError(f"Guard(max_grad_norm={max_grad_norm!r}): expected a positive number, or None not to clip")
    if isinstance(scheduler, ReduceLROnPlateau):
        raise UsageError(
            "Guard(scheduler=ReduceLROnPlateau): it needs a metric, which the guard does not have; leave it out "
            "and call scheduler.step(metric) yourself"
        )
    if scheduler is not None and not callable(getattr(scheduler, "step", None)):
        raise UsageError(f"Guard(scheduler={scheduler!r}): expected a learning rate scheduler with a step() method")
    if run_dir is not None:
        path_argument(run_dir, "Guard", "the path of a folder as run_dir, or None to write nothing")
    if isinstance(save_every, bool) or not isinstance(save_every, int) or save_every < 0:
        raise UsageError(f"Guard(save_every={save_every!r}): expected a number of steps, or 0 for never")


def checked_position(*, epoch: Any, batch: Any, samples: Iterable[Any]) -> tuple[int, ...]:
    """Refuse a position that is no whole number. Gives the indices of the samples, which may come as a tensor."""
    for name, value in (("epoch", epoch), ("batch", batch)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise UsageError(f"guard.set_position({name}={value!r}): expected a whole number")
    try:
        return tuple(operator.index(sample) for sample in samples)
    except TypeError:
        raise UsageError(f"guard.set_position(samples={samples!r}): expected whole numbers") from None


def as_metrics(metrics: object) -> Mapping[str, float]:
    """Check what `log_eval` was given."""
    if not isinstance(metrics, Mapping):
        raise UsageError(f"guard.log_eval(step, metrics): metrics is a dict of names to numbers, got {metrics!r}")
    for name, value in metrics.items():
        try:
            float(value)
        except (TypeError, ValueError, RuntimeError):
            raise UsageError(f"guard.log_eval(step, metrics): {name}={value!r} is not a number") from None
    return metrics
