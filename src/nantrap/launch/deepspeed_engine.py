"""DeepSpeed's engine: it scales the loss, makes the step on shards of the parameters, and skips an overflow itself.

One guard is made for each engine, over its module. The ranks decide together before each step. A refused step is left
out by DeepSpeed's own overflow path: a NaN is written into the gradients of this rank, so the optimizer clears them,
the engine counts the step as skipped, and the schedule stays. The loss scale is restored afterwards. An overflow while
a dynamic loss scale is searched is left to DeepSpeed alone.

A failed step is run again by its guilty rank without DeepSpeed's hooks, which would reduce the gradients of the replay.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from nantrap import finite
from nantrap.guard.session import Session, Setup
from nantrap.launch.companions import Scaled
from nantrap.launch.patches import Patches, when_imported
from nantrap.launch.registry import OptimizerRegistry
from nantrap.launch.script_loop import ScriptDriver, ScriptLoop

_ENGINE = "deepspeed.runtime.engine"
_OPTIMIZERS = (
    "deepspeed.runtime.zero.stage_1_and_2",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.bf16_optimizer",
    "deepspeed.runtime.base_optimizer",
)
_SHARDS = (
    "fp32_partitioned_groups_flat",  # ZeRO 3
    "single_partition_of_fp32_groups",  # ZeRO 1 and 2
    "fp32_groups_flat_partition",  # BF16_Optimizer
    "fp32_groups_flat",  # FP16_Optimizer
)
_HOOKS = (
    "_backward_prologue", "_backward_epilogue", "_backward_post_hook", "process_gradients",
    "reduce_ready_partitions_and_remove_grads", "accumulate_hp_grads_and_remove_lp", "reenter_backward_if_needed",
    "update_hook_state_and_maybe_run_epilogue",
)  # fmt: skip
"""What DeepSpeed calls while a backward pass runs; a replay leaves them out."""


class Engines:
    """The engines of a process, and their guards.

    Args:
        patches: where the wrappers of DeepSpeed's classes are kept.
        registry: makes and holds the guards.
        scaled: the scaled losses.
    """

    def __init__(self, patches: Patches, registry: OptimizerRegistry, scaled: Scaled) -> None:
        self._registry = registry
        self._scaled = scaled
        self._loops: weakref.WeakKeyDictionary[Any, ScriptLoop] = weakref.WeakKeyDictionary()

        def engine(module: ModuleType) -> None:
            """DeepSpeed is imported: wrap the calls of its engine."""
            cls = module.DeepSpeedEngine
            wrappers: dict[str, Callable[..., Any]] = {
                "__init__": self._made,
                "backward": self._backward,
                "scale": self._scale,
            }
            wrappers |= {"save_checkpoint": self._save_checkpoint, "_backward_prologue_per_tensor": self._as_it_is}
            for name, wrapper in wrappers.items():
                if hasattr(cls, name):
                    patches.wrap(cls, name, wrapper)
            _leave_out_hooks(patches, registry, module)

        when_imported(patches, _ENGINE, engine)
        for name in _OPTIMIZERS:
            when_imported(patches, name, functools.partial(_leave_out_hooks, patches, registry))

    def guard(self, engine: Any) -> None:
        """Guard what an engine trains. May be called again."""
        optimizer = getattr(engine, "basic_optimizer", None)
        if engine in self._loops or not isinstance(optimizer, torch.optim.Optimizer):
            return
        if getattr(engine, "pipeline_parallelism", False):
            self._registry.leave_alone(optimizer, "DeepSpeed's pipeline engine makes its steps")
            return
        loop = self._registry.guard_engine(optimizer, EngineStep(engine))
        if loop is None:
            return
        self._loops[engine] = loop
        if engine.optimizer is not optimizer:  # else the step of the class is guarded already
            self._loops[engine.optimizer] = loop
            engine.optimizer.step = self._step_of(engine.optimizer)

    def end(self) -> None:
        """Engines that the script still has are not guarded any more."""
        self._loops.clear()

    def _step_of(self, outer: Any) -> Any:
        """What the engine calls at each boundary of accumulation: the guard judges the step first."""
        original = outer.step
        loops, registry = self._loops, self._registry

        @functools.wraps(original)
        def step(*args: Any, **kwargs: Any) -> Any:
            loop = loops.get(outer)
            if loop is None or registry.is_own_call():
                return original(*args, **kwargs)
            scale = EngineScale(outer)
            run = functools.partial(original, *args, **kwargs)
            return loop.step(run, scaler=scale if scale.is_enabled() else None)

        return step

    def _made(self, original: Any, engine: Any, *args: Any, **kwargs: Any) -> None:
        """An engine is made. It steps its optimizer once with gradients of 0, which is no step of the training."""
        with self._registry.activity.of_guard():
            original(engine, *args, **kwargs)
        self.guard(engine)

    def _backward(self, original: Any, engine: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
        """`engine.backward(loss)`: the guard sees the loss before DeepSpeed divides and scales it."""
        loop, registry = self._loops.get(engine), self._registry
        if loop is None or registry.is_own_call() or not isinstance(loss, Tensor):
            return original(engine, loss, *args, **kwargs)
        result: list[Any] = []

        def run() -> None:
            with registry.activity.of_guard():
                result.append(original(engine, loss, *args, **kwargs))

        loop.backward(loss, run)
        return result[0] if result else loss

    def _scale(self, original: Any, engine: Any, loss: Any) -> Any:
        """`engine.scale(loss).backward()`: the guard sees the loss without the scale."""
        result = original(engine, loss)
        if result is not loss and not self._registry.is_own_call():
            self._scaled.note(result, loss)
        return result

    def _save_checkpoint(self, original: Any, engine: Any, save_dir: Any, *args: Any, **kwargs: Any) -> Any:
        """All ranks save a checkpoint of the engine, or none."""
        loop, registry = self._loops.get(engine), self._registry
        if loop is None or registry.settings.observes:
            return original(engine, save_dir, *args, **kwargs)
        registry.record_abandoned()
        bad = _bad_on_any_rank(loop)
        if not bad:
            return original(engine, save_dir, *args, **kwargs)
        if loop.session.ranks.prints:
            registry.say(f"{save_dir} is not saved: {bad} is not finite; the last good checkpoint stays")
        return False

    def _as_it_is(self, original: Any, engine: Any, gradient: Any) -> Any:
        """DeepSpeed divides a gradient by the number of micro-batches; a replay does that by itself."""
        return gradient if self._registry.replays() else original(engine, gradient)


def _leave_out_hooks(patches: Patches, registry: OptimizerRegistry, module: ModuleType) -> None:
    """What DeepSpeed's classes do in a backward pass is not done in one that a diagnosis runs again."""

    def hook(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        return None if registry.replays() else original(self, *args, **kwargs)

    for cls in list(vars(module).values()):
        if isinstance(cls, type) and cls.__module__ == module.__name__:
            for name in _HOOKS:
                if name in vars(cls):
                    patches.wrap(cls, name, hook)


def _bad_on_any_rank(loop: ScriptLoop) -> str:
    """The name of a value that is not finite, on this rank or another; every rank calls it when the engine saves."""
    names = loop.bad_state()
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return names[0] if names else ""
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, names[:1])
    return next((f"{found[0]} of rank {rank}" for rank, found in enumerate(told) if found), "")


class EngineStep:
    """How the guard of an engine differs from that of a script's own optimizer.

    Args:
        engine: the `DeepSpeedEngine`.
    """

    def __init__(self, engine: Any) -> None:
        self.root: nn.Module = engine.module
        self._outer = engine.optimizer
        self._inner = engine.basic_optimizer

    def setup(self, setup: Setup) -> Setup:
        """All ranks decide together, and no micro-batch is dropped: the engine counts them."""
        policy = replace(setup.policy, accumulation=replace(setup.policy.accumulation, bad="window"))
        if policy.on_incident == "observe":  # gradients are gone after the step, so an update cannot be made again
            policy = replace(policy, rollback=replace(policy.rollback, undo="never"))
        group = dist.group.WORLD if dist.is_initialized() and dist.get_world_size() > 1 else None
        shards = None if self._outer is self._inner else EngineShards(self.root, self._outer)
        return replace(setup, policy=policy, process_group=group, shards=shards)

    def driver(self, session: Session) -> ScriptDriver | None:
        """What makes the step; `None` if it is the optimizer itself."""
        shards = session.setup.shards
        if not isinstance(shards, EngineShards):
            return None
        return EngineDriver(session, shards)


class EngineShards:
    """What DeepSpeed's optimizer holds on this rank.

    Args:
        root: the module of the engine.
        outer: DeepSpeed's optimizer around the one that was configured.
    """

    def __init__(self, root: nn.Module, outer: Any) -> None:
        self.outer = outer
        self._names = {id(parameter): name for name, parameter in root.named_parameters()}
        self._parameters = [parameter for parameter in root.parameters() if parameter.requires_grad]

    def flat(self) -> list[Tensor]:
        """The float32 shards that the inner optimizer updates."""
        for name in _SHARDS:
            if found := getattr(self.outer, name, None):
                return list(found)
        return []

    def tensors(self) -> dict[str, Tensor]:
        """The float32 shards, and those of partitioned parameters."""
        found = {f"float32 shard {i}": tensor for i, tensor in enumerate(self.flat())}
        for parameter in self._parameters:
            shard = getattr(parameter, "ds_tensor", None)
            if isinstance(shard, Tensor):
                found[f"shard of {self._names[id(parameter)]}"] = shard
        return found

    def gradients(self) -> dict[str, Tensor]:
        """By the names of their parameters; a shard of offloaded gradients has a number."""
        averaged = getattr(self.outer, "averaged_gradients", None)
        flat = getattr(self.outer, "fp32_groups_gradient_flat_partition", None)
        if flat:
            return {f"float32 shard {i}": tensor for i, tensor in enumerate(flat)}
        if averaged is None:
            return {self._names[id(p)]: p.grad for p in self._parameters if p.grad is not None}
        groups = getattr(self.outer, "params_in_partition", None) or getattr(self.outer, "fp16_groups", [])
        found: dict[str, Tensor] = {}
        for i, shard in enumerate(self.flat()):
            given = averaged.get(i)
            if given:
                names = [self._names.get(id(parameter), "") for parameter in groups[i]] if i < len(groups) else []
                for j, gradient in enumerate(given):
                    found[names[j] if j < len(names) and names[j] else f"float32 shard {i}, part {j}"] = gradient
            elif shard.grad is not None:
                found[f"float32 shard {i}"] = shard.grad
        return found

    @property
    def are_parts(self) -> bool:
        """Whether each rank has the gradients of its shards only."""
        named = ("averaged_gradients", "fp32_groups_gradient_flat_partition")
        return any(hasattr(self.outer, name) for name in named)


class EngineDriver(ScriptDriver):
    """Makes the step of an engine, or lets DeepSpeed skip it.

    Args:
        session: of the run.
        shards: what the optimizer of the engine holds on this rank.
    """

    def __init__(self, session: Session, shards: EngineShards) -> None:
        super().__init__(session.protected, session.scaling)
        self._shards = shards

    def norm(self) -> Tensor:
        """The norm of all ranks' shards together, without the loss scale."""
        gradients = list(self._shards.gradients().values())
        norm = finite.gradient_norm(gradients).detach().float() if gradients else torch.zeros(())
        if self._shards.are_parts and dist.is_initialized():
            square = norm.double().square().reshape(1)
            dist.all_reduce(square, group=getattr(self._shards.outer, "dp_process_group", None))
            norm = square.sqrt()[0].float()
        return norm / float(getattr(self._shards.outer, "loss_scale", 1.0) or 1.0)

    def norm_is_used(self) -> bool:
        """DeepSpeed leaves out a step whose norm overflows, and clips by it."""
        return True

    def repeat_update(self) -> Any:
        """The gradients are gone: what the update made stays. A policy that only observes undoes no update."""
        return None

    def refuse_update(self, *, overflow: bool = False) -> None:
        """Let DeepSpeed skip the step, as it skips an overflow; its loss scale stays as it is."""
        outer = self._shards.outer
        for gradient in [each for each in self._shards.gradients().values() if each.numel()][:1]:
            gradient[(0,) * gradient.dim()] = math.nan
        scalers = [each for name in ("loss_scaler", "loss_scale_config") if (each := getattr(outer, name, None))]
        before = [dict(vars(scaler)) for scaler in scalers]
        checks = getattr(outer, "check_grad_overflow", None)
        for scaler in scalers:
            if hasattr(scaler, "raise_error_at_min_scale"):
                scaler.raise_error_at_min_scale = False
        if checks is False:
            outer.check_grad_overflow = True
        try:
            self.take_update()
        finally:
            if checks is False:
                outer.check_grad_overflow = checks
            for scaler, values in zip(scalers, before, strict=True):
                vars(scaler).update(values)


class EngineScale:
    """DeepSpeed's loss scale in the shape of a `GradScaler`, as far as `Scaling` asks.

    Args:
        outer: DeepSpeed's optimizer.
    """

    def __init__(self, outer: Any) -> None:
        self._outer = outer

    def is_enabled(self) -> bool:
        """Whether the scale is searched: then an overflow is normal."""
        return bool(getattr(self._outer, "dynamic_loss_scale", False))

    def get_scale(self) -> float:
        """The scale of this step."""
        return float(self._outer.loss_scale)

    def state_dict(self) -> dict[str, Any]:
        """The scale and its counters."""
        return dict(vars(self._outer.loss_scaler)) if hasattr(self._outer, "loss_scaler") else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The scale and its counters as they were."""
        if state:
            vars(self._outer.loss_scaler).update(state)
