"""Every optimizer from its making on, also third-party ones."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from nantrap.launch.calls import install_steps
from nantrap.launch.loops import Loops
from nantrap.launch.patches import Patches
from nantrap.launch.roots import innermost


def install(patches: Patches, loops: Loops) -> None:
    """Follow every optimizer from its creation on, and check before every step."""

    def made(original: Any, self: Optimizer, *args: Any, **kwargs: Any) -> None:
        _let_torch_wrap_first(type(self))
        original(self, *args, **kwargs)
        install_steps(patches, loops)
        if innermost(self) is self and not loops.is_own_call():
            loops.enter(self)

    patches.wrap(Optimizer, "__init__", made)
    install_steps(patches, loops)


def _let_torch_wrap_first(cls: type[Optimizer]) -> None:
    """What torch does to a class when its first instance is made; after us it would keep our wrapper permanently."""
    owner: Any = next(each for each in cls.__mro__ if "step" in vars(each))
    if not getattr(owner.step, "hooked", False):
        owner.step = Optimizer.profile_hook_step(owner.step)
        owner.step.hooked = True
