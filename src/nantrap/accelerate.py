"""Accelerate: `accelerator = nantrap.accelerate.guard(Accelerator(...))`.

The loop stays as it is: `accumulate`, `backward`, `clip_grad_norm_`, mixed precision, several processes. A step that is
not finite is skipped; `accelerator.optimizer_step_was_skipped` is then true, and the prepared scheduler does not
advance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from nantrap.errors import MissingExtraError

try:
    from accelerate.optimizer import AcceleratedOptimizer
except ImportError:
    raise MissingExtraError("accelerate", extra="accelerate") from None

from nantrap.launch.adapting import Adapter

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from nantrap.launch.adapting import Options

AcceleratorLike = TypeVar("AcceleratorLike")


def guard(
    accelerator: AcceleratorLike,
    **options: Unpack[Options],
) -> AcceleratorLike:
    """Guard the loop of an `Accelerator` from here on.

    The summary comes with `accelerator.end_training()`, or at the end of the process.

    Args:
        accelerator: the `Accelerator`, which is returned.
        options: `policy`, a `nantrap.Policy`; `run_dir`, where the journal and the incidents go; `export`, exporters by
            name; `quiet`, to print nothing.

    Example:
        accelerator = nantrap.accelerate.guard(Accelerator(mixed_precision="bf16"))
    """
    adapter = Adapter("accelerate", **options)
    adapter.begin()
    if adapter.active:
        _tell_accelerate(adapter)
        _gate_states(accelerator, adapter)
        _end_with(accelerator, adapter)
    return accelerator


def _tell_accelerate(adapter: Adapter) -> None:
    """Accelerate treats a refused step as skipped, as it does for an overflow in float16."""
    original = AcceleratedOptimizer.step

    def step(self: Any, closure: Any = None) -> None:
        self._is_overflow = False
        original(self, closure)
        if self.gradient_state.sync_gradients and adapter.refused(self.optimizer):
            self._is_overflow = True

    AcceleratedOptimizer.step = step
    adapter.at_end(lambda: setattr(AcceleratedOptimizer, "step", original))


def _gate_states(accelerator: Any, adapter: Adapter) -> None:
    """`save_state` is refused while the state is not finite: the last good one stays."""
    original = accelerator.save_state

    def save_state(output_dir: Any = None, *args: Any, **kwargs: Any) -> Any:
        what = str(output_dir or "the state of the accelerator")
        return adapter.may_save(what, lambda: original(output_dir, *args, **kwargs))

    accelerator.save_state = save_state


def _end_with(accelerator: Any, adapter: Adapter) -> None:
    original = accelerator.end_training

    def end_training() -> None:
        adapter.end()
        original()

    accelerator.end_training = end_training
