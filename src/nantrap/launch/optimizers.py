"""Optimizers: every class of them, also third-party ones. A bad step is not taken."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn
from torch.optim import Optimizer

from nantrap.launch.loops import Loops
from nantrap.launch.patches import Patches
from nantrap.launch.resuming import look_at_resume
from nantrap.launch.roots import innermost


def install(patches: Patches, loops: Loops) -> None:
    """Follow every optimizer from its creation on, and check before every step."""

    def step(original: Any, self: Optimizer, *args: Any, **kwargs: Any) -> Any:
        loop = None if loops.is_own_call() else loops.loop_of(self)
        if loop is None:
            return original(self, *args, **kwargs)
        look_at_resume(loops, self)
        closure = args[0] if args else kwargs.get("closure")
        if closure is None:
            return loop.step(functools.partial(original, self, *args, **kwargs))
        others = {name: value for name, value in kwargs.items() if name != "closure"}
        return loop.step_with_closure(lambda used: original(self, used, *args[1:], **others), closure)

    def made(original: Any, self: Optimizer, *args: Any, **kwargs: Any) -> None:
        _let_torch_wrap_first(type(self))
        original(self, *args, **kwargs)
        wrap_steps()
        if innermost(self) is self and not loops.is_own_call():
            loops.enter(self)

    def wrap_steps() -> None:
        """Of the classes that have an instance: torch has put its own wrapper around those, and its wrapper runs
        first."""
        patches.wrap_all(Optimizer, "step", step, only=lambda function: getattr(function, "hooked", False))

    def cleared(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
        if not loops.is_own_call():
            for loop in loops:
                if loop.optimizer is self or _holds(self, loop.model):
                    loop.clears()
        return original(self, *args, **kwargs)

    patches.wrap(Optimizer, "__init__", made)
    wrap_steps()
    patches.wrap_all(Optimizer, "zero_grad", cleared)
    patches.wrap(nn.Module, "zero_grad", cleared)


def _let_torch_wrap_first(cls: type[Optimizer]) -> None:
    """What torch does to a class when its first instance is made; after us it would keep our wrapper permanently."""
    owner: Any = next(each for each in cls.__mro__ if "step" in vars(each))
    if not getattr(owner.step, "hooked", False):
        owner.step = Optimizer.profile_hook_step(owner.step)
        owner.step.hooked = True


def _holds(owner: Any, model: nn.Module) -> bool:
    return isinstance(owner, nn.Module) and any(module is model for module in owner.modules())
