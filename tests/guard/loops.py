"""One training run in three forms (plain, two lines, attempt), and its whole state compared bit for bit."""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, overload

import numpy as np
import torch
from torch import Tensor, nn

import nantrap

NAN, INF = float("nan"), float("inf")
M = TypeVar("M", bound=nn.Module)


@dataclass
class Run(Generic[M]):
    """Everything a training loop holds. `loss(model, batch)` gives a tensor or a dict of terms."""

    model: M
    optimizer: torch.optim.Optimizer
    loss: Callable[[M, Any], Any]
    batches: list[Any]
    scheduler: Any = None
    scaler: Any = None
    ema: Any = None
    autocast: torch.dtype | None = None
    max_grad_norm: float | None = 1.0
    micro: int = 1
    losses: list[float] = field(default_factory=list)
    outcomes: list[nantrap.Outcome] = field(default_factory=list)

    def guard(self, **options: Any) -> nantrap.Guard:
        options.setdefault("quiet", True)
        options.setdefault("max_grad_norm", self.max_grad_norm)
        return nantrap.Guard(
            self.model, self.optimizer, scheduler=self.scheduler, scaler=self.scaler, ema=self.ema, **options
        )

    def forward(self, batch: Any) -> Any:
        device = next(self.model.parameters()).device.type
        region = torch.autocast(device, dtype=self.autocast) if self.autocast else contextlib.nullcontext()
        with region:
            return self.loss(self.model, batch)

    def windows(self, batches: Iterable[Any] | None = None) -> list[tuple[Any, ...]]:
        batches = list(self.batches if batches is None else batches)
        return [tuple(batches[i : i + self.micro]) for i in range(0, len(batches), self.micro)]


def train_plain(run: Run, windows: Iterable[tuple[Any, ...]] | None = None) -> Run:
    """The loop a user has without us."""
    for window in run.windows() if windows is None else windows:
        total_value = 0.0
        for batch in window:
            given = run.forward(batch)
            total: Any = sum(given.values()) if isinstance(given, dict) else given
            if len(window) > 1:
                total = total / len(window)
            total_value += float(total.detach())
            (run.scaler.scale(total) if run.scaler else total).backward()
        run.losses.append(total_value)
        if run.scaler:
            run.scaler.unscale_(run.optimizer)
        if run.max_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(run.model.parameters(), run.max_grad_norm)
        if run.scaler:
            run.scaler.step(run.optimizer)
            run.scaler.update()
        else:
            run.optimizer.step()
        if run.scheduler is not None:
            run.scheduler.step()
        if run.ema is not None:
            run.ema.update_parameters(run.model)
        run.optimizer.zero_grad()
    return run


def train_two_line(run: Run, guard: nantrap.Guard, windows: Iterable[tuple[Any, ...]] | None = None) -> Run:
    """The same loop with two lines changed."""
    for window in run.windows() if windows is None else windows:
        for batch in window:
            given = run.forward(batch)
            if len(window) > 1:
                given = (
                    {k: v / len(window) for k, v in given.items()} if isinstance(given, dict) else given / len(window)
                )
            guard.backward(given)
        outcome = guard.step()
        run.outcomes.append(outcome)
        run.losses.append(outcome.loss)
    return run


def train_attempt(run: Run, guard: nantrap.Guard, windows: Iterable[tuple[Any, ...]] | None = None) -> Run:
    """The same loop, run by the guard."""
    for window in run.windows() if windows is None else windows:
        outcome = guard.attempt(run.forward, *window)
        run.outcomes.append(outcome)
        run.losses.append(outcome.loss)
    return run


FORMS = {"two_line": train_two_line, "attempt": train_attempt}


def state_of(run: Run, *, gradients: bool = False, rng: bool = True) -> dict[str, Any]:
    """A copy of the whole state, flat and by name."""
    state: dict[str, Any] = {}
    for name, parameter in run.model.named_parameters():
        state[f"parameter {name}"] = parameter.detach().clone()
        if gradients:
            state[f"gradient {name}"] = None if parameter.grad is None else parameter.grad.clone()
    for name, buffer in run.model.named_buffers():
        state[f"buffer {name}"] = buffer.detach().clone()
    for key, value in run.optimizer.state_dict()["state"].items():
        state |= {f"optimizer {key}.{name}": copy.deepcopy(entry) for name, entry in value.items()}
    for index, group in enumerate(run.optimizer.param_groups):
        state |= {f"group {index}.{k}": copy.deepcopy(v) for k, v in group.items() if k != "params"}
    if run.scheduler is not None:
        entries = run.scheduler.state_dict().items()
        state |= {f"scheduler {k}": copy.deepcopy(v) for k, v in entries if not callable(v) and k != "_schedulers"}
    if run.scaler is not None:
        state |= {f"scaler {k}": v for k, v in run.scaler.state_dict().items()}
    if run.ema is not None:
        state |= {f"ema {k}": v.detach().clone() for k, v in run.ema.state_dict().items()}
    if rng:
        state["rng torch"] = torch.get_rng_state()
        state["rng python"] = random.getstate()
        state["rng numpy"] = numpy_words()
    return state


def numpy_words() -> bytes:
    """The words of NumPy's generator."""
    state: Any = np.random.get_state()
    return bytes(state[1].tobytes())


def assert_same_state(left: dict[str, Any], right: dict[str, Any]) -> None:
    """Bit for bit; the message names everything that differs."""
    assert left.keys() == right.keys(), sorted(left.keys() ^ right.keys())
    different = [name for name in left if not same(left[name], right[name])]
    assert not different, different


def same(left: Any, right: Any) -> bool:
    """Equal to the last bit: NaN equals NaN of the same bits, 0.0 does not equal -0.0."""
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        if left.dtype != right.dtype or left.shape != right.shape:
            return False
        if left.is_sparse or right.is_sparse:
            return same(left.to_dense(), right.to_dense())
        return bytes_of(left) == bytes_of(right)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, float) and isinstance(right, float):
        return left.hex() == right.hex()
    return bool(left == right)


def bytes_of(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same_losses(left: list[float], right: list[float]) -> bool:
    return [value.hex() for value in left] == [value.hex() for value in right]


# ---- models


class Net(nn.Module):
    """Dropout, BatchNorm, a buffer that the forward replaces, one it writes, and a large constant one."""

    drop: nn.Module
    replaced: Tensor
    written: Tensor
    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(16, 3)
        self.register_buffer("replaced", torch.zeros(3))
        self.register_buffer("written", torch.zeros(3))
        self.register_buffer("table", torch.arange(5000.0))

    def forward(self, x: Tensor) -> Tensor:
        y = self.head(self.drop(torch.relu(self.norm(self.inner(x)))))
        self.replaced = 0.9 * self.replaced + 0.1 * y.detach().mean(0)
        self.written.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        return y


def mse(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def batches(count: int, *, rows: int = 8, inputs: int = 6, outputs: int = 3) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [
        (torch.randn(rows, inputs, generator=generator), 3 * torch.randn(rows, outputs, generator=generator))
        for _ in range(count)
    ]


@overload
def make_run(
    optimizer: Callable[[M], torch.optim.Optimizer] | None = None,
    *,
    model: Callable[[], M],
    loss: Callable[[M, Any], Any] = mse,
    data: list[Any] | None = None,
    **parts: Any,
) -> Run[M]: ...


@overload
def make_run(
    optimizer: Callable[[Net], torch.optim.Optimizer] | None = None,
    *,
    loss: Callable[[Net, Any], Any] = mse,
    data: list[Any] | None = None,
    **parts: Any,
) -> Run[Net]: ...


def make_run(
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    *,
    model: Callable[[], Any] = Net,
    loss: Callable[[Any, Any], Any] = mse,
    data: list[Any] | None = None,
    **parts: Any,
) -> Run[Any]:
    """A run from a fixed seed; `scheduler`, `scaler` and `ema` are given as functions."""
    torch.manual_seed(3)
    random.seed(3)
    np.random.seed(3)
    net = model()
    chosen = optimizer(net) if optimizer else torch.optim.AdamW(net.parameters(), lr=1e-2)
    if "scheduler" in parts:
        parts["scheduler"] = parts["scheduler"](chosen)
    if "scaler" in parts:
        parts["scaler"] = parts["scaler"]()
    if "ema" in parts:
        parts["ema"] = parts["ema"](net)
    return Run(net, chosen, loss, batches(8) if data is None else data, **parts)


def poison(batch: tuple[Tensor, Tensor], value: float = NAN, row: int = 2) -> tuple[Tensor, Tensor]:
    """The batch with one bad value."""
    x = batch[0].clone()
    x[row, 1] = value
    return x, batch[1]
