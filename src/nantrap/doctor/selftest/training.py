"""A small training run, made by the plain loop and by a guard, whose whole state can be compared bit for bit."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ExponentialLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from nantrap.guard import Diagnosis, Guard, Policy
from nantrap.locate import RngState

FIRST: Final = 10
"""Steps before anything is tried: a guard reads the first eight at once."""
REST: Final = 3
Form = Literal["attempt", "two lines"]
FORMS: Final[tuple[Form, ...]] = ("attempt", "two lines")
Batch = tuple[Tensor, Tensor]
State = dict[str, Any]


class Net(nn.Module):
    """BatchNorm, a buffer that each forward pass writes, and dropout if it is wanted."""

    seen: Tensor

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.inner, self.norm, self.drop = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(dropout)
        self.head = nn.Linear(16, 3)
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        """The prediction."""
        out: Tensor = self.head(self.drop(torch.relu(self.norm(self.inner(x)))))
        self.seen.mul_(0.9).add_(out.detach().float().mean(0), alpha=0.1)
        return out


def fused_adamw(parameters: Any) -> Optimizer:
    """The optimizer of most large runs."""
    return torch.optim.AdamW(parameters, lr=1e-2, fused=True)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a run trains.

    Attributes:
        optimizer: makes it from the parameters.
        clip: to which norm; `None` does not clip.
        scale: the first loss scale of a GradScaler; 0 for none.
        autocast: the dtype of an autocast region around the loss, or `None`.
        average: whether averaged weights are kept.
        schedule: whether the learning rate falls.
        micro: micro-batches in a step.
        wrap: what is called in place of the model: compiled, or replayed from a graph.
    """

    optimizer: Callable[[Any], Optimizer] = fused_adamw
    clip: float | None = 1.0
    scale: float = 0.0
    autocast: torch.dtype | None = None
    average: bool = False
    schedule: bool = False
    micro: int = 1
    wrap: Callable[[nn.Module, Batch], Callable[[Tensor], Tensor]] = field(default=lambda model, batch: model)


def batches(device: torch.device, count: int) -> list[Batch]:
    """Makes batches that have the same values on every device."""
    draws = torch.Generator().manual_seed(7)
    made = [(torch.randn(8, 6, generator=draws), 3 * torch.randn(8, 3, generator=draws)) for _ in range(count)]
    return [(x.to(device), y.to(device)) for x, y in made]


class Training:
    """One run of a recipe, from fixed seeds."""

    def __init__(self, recipe: Recipe, device: torch.device, *, dropout: float = 0.0) -> None:
        torch.manual_seed(3)
        self.recipe, self.device = recipe, device
        self.model = Net(dropout).to(device)
        self.optimizer = recipe.optimizer(self.model.parameters())
        self.schedule = ExponentialLR(self.optimizer, 0.97) if recipe.schedule else None
        self.scaler = torch.amp.GradScaler(device.type, init_scale=recipe.scale) if recipe.scale else None
        average = get_ema_multi_avg_fn(0.9)
        self.average = AveragedModel(self.model, multi_avg_fn=average, use_buffers=True) if recipe.average else None
        self.call = recipe.wrap(self.model, batches(device, 1)[0])
        torch.manual_seed(4)

    def windows(self, count: int = FIRST + REST) -> list[list[Batch]]:
        """The steps of the run, each with its micro-batches."""
        micro = self.recipe.micro
        made = batches(self.device, count * micro)
        return [made[i : i + micro] for i in range(0, len(made), micro)]

    def loss(self, batch: Batch) -> Tensor:
        """Of one micro-batch."""
        return loss_of(self.call, batch, self.device.type, self.recipe.autocast)

    def plain(self, windows: Iterable[Sequence[Batch]]) -> None:
        """The loop without a guard."""
        for window in windows:
            for batch in window:
                total = self.loss(batch) / len(window)
                (total if self.scaler is None else self.scaler.scale(total)).backward()
            if self.scaler is not None:
                self.scaler.unscale_(self.optimizer)
            if self.recipe.clip is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip)
            if self.scaler is None:
                self.optimizer.step()
            else:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            if self.schedule is not None:
                self.schedule.step()
            if self.average is not None:
                self.average.update_parameters(self.model)
            self.optimizer.zero_grad()

    def guard(self, folder: str | None = None, **policy: Any) -> Guard:
        """A guard of this run."""
        policy.setdefault("diagnosis", Diagnosis(seconds=10))
        model = self.call if isinstance(self.call, nn.Module) else self.model
        return Guard(
            model, self.optimizer, scheduler=self.schedule, scaler=self.scaler, ema=self.average,
            max_grad_norm=self.recipe.clip, policy=Policy(**policy), run_dir=folder, quiet=True,
        )  # fmt: skip

    def guarded(self, guard: Guard, form: Form, windows: Iterable[Sequence[Batch]]) -> None:
        """Runs the plain loop under a guard, in one of two forms."""
        for window in windows:
            if form == "attempt":
                guard.attempt(self.loss, *window)
                continue
            call, kind, autocast = self.call, self.device.type, self.recipe.autocast
            for batch in window:
                loss = loss_of(call, batch, kind, autocast)
                guard.backward(loss / len(window))
            guard.step()

    def state(self, *, streams: bool = True) -> State:
        """Copies of everything that the run holds, by name.

        Args:
            streams: also the random streams, which a step that is left out moves.
        """
        held: State = {f"parameter {name}": p for name, p in self.model.named_parameters()}
        held |= {f"buffer {name}": b for name, b in self.model.named_buffers()}
        for key, entries in self.optimizer.state_dict()["state"].items():
            held |= {f"optimizer {key}.{name}": value for name, value in entries.items()}
        for index, group in enumerate(self.optimizer.param_groups):
            held[f"learning rate {index}"] = group["lr"]
        if self.scaler is not None:
            held |= {f"scaler {name}": value for name, value in self.scaler.state_dict().items()}
        if self.average is not None:
            held |= {f"average {name}": value for name, value in self.average.state_dict().items()}
        if streams:
            now = RngState.capture()
            held |= {"random numbers of the host": now.torch_cpu}
            held |= {f"random numbers of device {i}": each for i, each in enumerate(now.torch_devices)}
        return {name: _bits(value) for name, value in held.items()}


def loss_of(call: Callable[[Tensor], Tensor], batch: Batch, kind: str, autocast: torch.dtype | None) -> Tensor:
    """The mean square error and, so that a batch of zeros fails, the logarithm of the size of the inputs."""
    with torch.autocast(kind, dtype=autocast) if autocast else contextlib.nullcontext():
        error = nn.functional.mse_loss(call(batch[0]), batch[1])
        return error + 1e-3 * torch.log(batch[0].square().sum(1)).mean()


def _bits(value: Any) -> Any:
    """A value that equals another one only if all bits are the same."""
    if isinstance(value, Tensor):
        return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return value.hex() if isinstance(value, float) else value


def differences(left: State, right: State) -> str:
    """What is not the same, in words; empty if everything is."""
    names = [name for name in left.keys() | right.keys() if left.get(name) != right.get(name)]
    return ", ".join(sorted(names)[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def how_it_was_read(folder: str | Path) -> str:
    """`one step later`, or `at once` and why."""
    return str(json.loads(Path(folder, "run.json").read_text(encoding="utf-8"))["read"])


class NotHere(Exception):
    """Something cannot be tried here, with the reason."""


class DidNotHold(Exception):
    """It was tried and failed, in words."""


class PlainLoopDiffersError(Exception):
    """The plain loop, made twice, gives other bits: nothing can be compared with it here."""


def plain_state(recipe: Recipe, device: torch.device, *, dropout: float = 0.0, streams: bool = True) -> State:
    """What the loop without a guard ends with."""
    run = Training(recipe, device, dropout=dropout)
    run.plain(run.windows())
    return run.state(streams=streams)


def compare(recipe: Recipe, device: torch.device, without: State) -> tuple[str, str]:
    """Healthy: bit for bit the plain loop. One bad batch: bit for bit the loop that never met it. In both forms.

    Args:
        recipe: how the runs train.
        device: where.
        without: what the plain loop ends with, without dropout and without the streams.

    Returns:
        What went wrong in words, empty if nothing did; and how the steps were read.
    """
    expected = plain_state(recipe, device, dropout=0.2)
    if found := differences(expected, plain_state(recipe, device, dropout=0.2)):
        raise PlainLoopDiffersError(found)
    windows = Training(recipe, device).windows()
    read = ""
    for form in FORMS:
        with tempfile.TemporaryDirectory() as folder:
            run = Training(recipe, device, dropout=0.2)
            with run.guard(folder) as guard:
                run.guarded(guard, form, windows)
            if found := differences(expected, run.state()):
                return f"{form}: a healthy run is not bit for bit the plain one: {found}", read
            read = how_it_was_read(folder)
        run = Training(recipe, device)
        bad = (torch.full_like(windows[0][0][0], torch.nan), windows[0][0][1])
        with run.guard(diagnose="locate") as guard:
            run.guarded(guard, form, [*windows[:FIRST], [bad] * recipe.micro, *windows[FIRST:]])
        step = None if guard.last_incident is None else guard.last_incident.step
        if step != FIRST or guard.tally.incidents not in (1, recipe.micro):
            return f"{form}: the bad step {FIRST} gave {guard.tally.incidents} incidents, the last in step {step}", read
        if found := differences(without, run.state(streams=False)):
            return f"{form}: after a bad step the state is not that of a run without it: {found}", read
    return "", read
