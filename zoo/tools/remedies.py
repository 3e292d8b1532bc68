"""The usual remedies, written here after the rule that people publish. Most of them say nothing."""

from __future__ import annotations

from collections.abc import Callable

import torch

from zoo.running import Alarm, Run

Act = Callable[[list[torch.nn.Parameter], Run], bool]
"""What is done between backward and the update; whether the update is made."""


class Remedy:
    """A loop with one change before backward, and one before the update."""

    def __init__(
        self, name: str, about: str, *, loss: str = "", act: Act = lambda *_: True, stops: bool = False
    ) -> None:
        self.name, self.about, self.stops = f"remedy_{name}", about, stops
        self._loss, self._act = loss, act

    def train(self, run: Run) -> None:
        """Train to the end, or until the remedy raises."""
        case = run.build()
        optimizer, parameters = case["optimizer"], list(case["model"].parameters())
        for batch in run.batches():
            loss = run.loss(batch)
            bad = self._loss in ("skip", "raise") and not bool(loss.isfinite())
            if bad:
                run.alarm(Alarm())
                if self._loss == "raise":
                    return
            else:
                (torch.nan_to_num(loss) if self._loss == "nan_to_num" else loss).backward()
                made = self._act(parameters, run)
                if made:
                    optimizer.step()
                elif self.stops:
                    return
            optimizer.zero_grad()


def norm_decides(parameters: list[torch.nn.Parameter], run: Run) -> bool:
    """Clip to 1, and leave the update out if the norm is non-finite."""
    finite = bool(torch.nn.utils.clip_grad_norm_(parameters, 1.0).isfinite())
    if not finite:
        run.alarm(Alarm())
    return finite


def clip(parameters: list[torch.nn.Parameter], run: Run) -> bool:
    """Clip to 1."""
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    return True


def zero(parameters: list[torch.nn.Parameter], run: Run) -> bool:
    """Replace non-finite gradients by 0."""
    for parameter in parameters:
        if parameter.grad is not None:
            torch.nan_to_num_(parameter.grad, nan=0.0, posinf=0.0, neginf=0.0)
    return True


TOOLS = (
    Remedy("loss_raises", "raise if the loss is non-finite (own)", loss="raise", stops=True),
    Remedy("loss_skips", "`continue` if the loss is non-finite (own)", loss="skip"),
    Remedy("loss_nan_to_num", "`nan_to_num` on the loss (own)", loss="nan_to_num"),
    Remedy("clip", "`clip_grad_norm_`", act=clip),
    Remedy("norm_raises", "`clip_grad_norm_` with `error_if_nonfinite`'s rule (own)", act=norm_decides, stops=True),
    Remedy("loss_and_norm_skip", "skip if the loss or the norm is non-finite (own)", loss="skip", act=norm_decides),
    Remedy("gradients_zeroed", "`nan_to_num` on each gradient (own)", act=zero),
)
