"""DeepSpeed: `engine = nantrap.deepspeed.guard(engine)`.

The loop stays as it is: `engine(batch)`, `engine.backward(loss)`, `engine.step()`, with ZeRO 0 to 3, float16 or
bfloat16, accumulation and clipping. All ranks decide together. A step that is not finite is left out by DeepSpeed
itself, which counts it in `engine.skipped_steps`; nantrap says where it began and why. `engine.save_checkpoint` writes
nothing while a parameter or an optimizer state is not finite on any rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from nantrap.errors import MissingExtraError, UsageError

try:
    from deepspeed.runtime.engine import DeepSpeedEngine
except ImportError:
    raise MissingExtraError("deepspeed", extra="deepspeed") from None

from nantrap.launch.adapting import Adapter

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from nantrap.launch.adapting import Options

EngineLike = TypeVar("EngineLike")


def guard(engine: EngineLike, **options: Unpack[Options]) -> EngineLike:
    """Guard the loop of an engine from here on. Every rank calls it.

    The summary comes with `engine.destroy()`, or at the end of the process.

    Args:
        engine: what `deepspeed.initialize` returned first; it is returned.
        options: `policy`, a `nantrap.Policy`; `run_dir`, where the journal and the incidents go; `export`, exporters by
            name; `quiet`, to print nothing.

    Example:
        engine, optimizer, _, schedule = deepspeed.initialize(model=model, config=config)
        engine = nantrap.deepspeed.guard(engine)
    """
    if not isinstance(engine, DeepSpeedEngine):
        raise UsageError(
            f"nantrap.deepspeed.guard({type(engine).__name__}): expected the engine, the first value that "
            "deepspeed.initialize returns"
        )
    adapter = Adapter("deepspeed", **options)
    adapter.begin()
    adapter.guard_engine(engine)
    original = engine.destroy

    def destroy() -> None:
        adapter.end()
        original()

    engine.destroy = destroy
    return engine
