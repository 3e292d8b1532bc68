"""What is left of a run in which something breaks all the time? Faults of every kind, with and without the guard.

The same small classifier is trained on the same batches in four ways, under the same faults, which `nantrap.inject`
puts into batches, activations, losses, gradients, buffers, weights and optimizer state at random steps. Shown are the
share of the steps that were applied, whether weights, buffers and optimizer state are finite at the end, and the loss
on clean batches in evaluation mode. The faults are the same in every run of this program.

    python benchmarks/storm.py
    python benchmarks/storm.py --steps 2000 --rate 0.02
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

import nantrap

Batch = tuple[Tensor, Tensor]
_CLASSES = 5


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended."""

    applied: float
    finite: bool
    loss: float
    seconds: float
    faults: Counter[str]
    stopped: str = ""


def batches(steps: int, seed: int) -> Iterator[Batch]:
    """Five clusters that can be told apart."""
    centres = 2.0 * torch.randn(_CLASSES, 16, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        labels = torch.randint(0, _CLASSES, (32,), generator=generator)
        yield centres[labels] + torch.randn(32, 16, generator=generator), labels


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


Step = Callable[[nn.Module, Optimizer, Batch], bool]


def plain(model: nn.Module, optimizer: Optimizer, batch: Batch) -> bool:
    """A loop that clips and looks at nothing."""
    optimizer.zero_grad()
    loss_of(model, batch).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return True


def skips_by_isnan(model: nn.Module, optimizer: Optimizer, batch: Batch) -> bool:
    """The test that most loops have: a NaN loss is skipped."""
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    if torch.isnan(loss):
        return False
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return True


def skips_by_norm(model: nn.Module, optimizer: Optimizer, batch: Batch) -> bool:
    """A more careful loop: nothing is applied unless loss and gradient norm are finite."""
    optimizer.zero_grad()
    loss = loss_of(model, batch)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if not (torch.isfinite(loss) and torch.isfinite(norm)):
        return False
    optimizer.step()
    return True


_WAYS: dict[str, Step | None] = {
    "plain loop": plain,
    "if isnan(loss): continue": skips_by_isnan,
    "skip unless the norm is finite": skips_by_norm,
    "guard": None,
}


def run(step: Step | None, steps: int, faults: str) -> Ended:
    """Train once. Without a step of its own, the guard makes the steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, _CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    policy = nantrap.Policy(bundle="off", diagnose="off", max_rollbacks=steps, lr_backoff=1.0)
    applied, stopped = 0, ""
    begin = time.perf_counter()
    guard = nantrap.Guard(model, optimizer, max_grad_norm=1.0, policy=policy, quiet=True) if step is None else None
    with guard or contextlib.nullcontext(), nantrap.inject(faults, model=model, optimizer=optimizer) as injected:
        for batch in batches(steps, seed=1):
            if guard is None:
                assert step is not None
                applied += step(model, optimizer, batch)
                continue
            try:
                applied += guard.attempt(lambda part: loss_of(model, part), batch).applied
            except nantrap.NonFiniteError as error:
                stopped = str(error).partition("\n")[0]
                break
    seconds = time.perf_counter() - begin
    model.eval()
    with torch.no_grad():
        loss = sum(float(loss_of(model, batch)) for batch in batches(20, seed=2)) / 20
    state = [*model.state_dict().values(), *(v for s in optimizer.state.values() for v in s.values())]
    finite = all(bool(torch.as_tensor(value).isfinite().all()) for value in state)
    kinds = Counter(fault.kind for fault in injected.injected)
    return Ended(applied / steps, finite, loss, seconds, kinds, stopped)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rate", type=float, default=0.01, help="of each kind that is over after the step")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    passing = [f"{kind}:{chosen.rate},seed={seed}" for seed, kind in enumerate(("batch", "activation", "loss", "grad"))]
    staying = [f"{kind}:{chosen.rate / 5},seed={seed}" for seed, kind in enumerate(("buffer", "param", "optimizer"))]
    faults = ";".join([*passing, *staying])
    print(f"{chosen.steps:,} steps, {faults}")
    print(f"{'':32} {'applied':>8} {'state finite':>13} {'loss':>8} {'seconds':>8}")
    show("plain loop, no faults", run(plain, chosen.steps, "grad:step=1000000000"))
    for name, step in _WAYS.items():
        ended = run(step, chosen.steps, faults)
        show(name, ended)
    print("injected: " + ", ".join(f"{count} × {kind}" for kind, count in sorted(ended.faults.items())))


def show(name: str, ended: Ended) -> None:
    """A line of the table."""
    numbers = f"{ended.applied:8.1%} {ended.finite!s:>13} {ended.loss:8.4f} {ended.seconds:8.2f}"
    print(f"{name:32} {numbers} {ended.stopped}".rstrip())


if __name__ == "__main__":
    main()
