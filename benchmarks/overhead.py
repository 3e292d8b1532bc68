"""What the guard costs a healthy run: ratio to the plain loop that clips.

    python benchmarks/overhead.py [--pairs 200] [--block 1] [--only transformer|cnn|mlp] [--tensors] [--json] [--save]

One process, one thread. A contestant and the plain loop take turns, each on its own copy of the model, so that every
ratio is of two adjacent measurements; the median over all pairs is printed, with the spread of the middle half. The
A/A line compares the plain loop with itself: what it shows beyond 1.000 is the noise of the machine. The journal is on,
the policy is the default one. Other tools are measured in the same run.

`--tensors` measures something else: how the guard's cost grows with the number of parameter tensors (10, 1,000 and
5,000 of 64 values each), compared with the optimizer's own step. Nothing is clipped, so that the gradient norm is part
of the guard's cost. `--save` stores what was measured in `benchmarks/results`.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from stored import save
from torch import Tensor, nn

import nantrap

Step = Callable[[], object]


class Block(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


def transformer() -> tuple[nn.Module, Any, Callable[[nn.Module, Any], Tensor]]:
    """Four layers, width 256, 8 × 128 tokens."""
    model = nn.Sequential(nn.Embedding(512, 256), *(Block(256) for _ in range(4)), nn.Linear(256, 512))
    batch = torch.randint(0, 512, (8, 128))
    return model, batch, lambda m, b: nn.functional.cross_entropy(m(b).flatten(0, 1), b.flatten())


def cnn() -> tuple[nn.Module, Any, Callable[[nn.Module, Any], Tensor]]:
    """Six convolutions with BatchNorm on 16 images of 32 × 32."""
    layers: list[nn.Module] = []
    for c_in, c_out in ((3, 16), (16, 16), (16, 32), (32, 32), (32, 32), (32, 32)):
        layers += [nn.Conv2d(c_in, c_out, 3, padding=1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    batch = (torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,)))
    return model, batch, lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1])


def mlp() -> tuple[nn.Module, Any, Callable[[nn.Module, Any], Tensor]]:
    """A step of about half a millisecond: nothing hides here."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    batch = (torch.randn(128, 64), torch.randint(0, 10, (128,)))
    return model, batch, lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1])


CASES = {"transformer": transformer, "cnn": cnn, "mlp": mlp}


def contestants(make: Any, folder: str) -> dict[str, Step]:
    """Every way to run a step, each on its own copy of the same model."""
    torch.manual_seed(0)
    model, batch, loss_of = make()

    def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
        own = copy.deepcopy(model)
        return own, torch.optim.AdamW(own.parameters(), lr=1e-4)

    def plain(check: Any = None) -> Step:
        own, optimizer = fresh()
        for module in own.modules() if check is not None else ():
            module.register_forward_hook(check)

        def step() -> None:
            loss_of(own, batch).backward()
            torch.nn.utils.clip_grad_norm_(own.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return step

    def two_line(**options: Any) -> Step:
        own, optimizer = fresh()
        guard = nantrap.Guard(
            own, optimizer, max_grad_norm=1.0, run_dir=tempfile.mkdtemp(dir=folder), quiet=True, **options
        )

        def step() -> None:
            guard.backward(loss_of(own, batch))
            guard.step()

        return step

    def attempt() -> Step:
        own, optimizer = fresh()
        guard = nantrap.Guard(own, optimizer, max_grad_norm=1.0, run_dir=tempfile.mkdtemp(dir=folder), quiet=True)

        def step() -> None:
            guard.attempt(lambda b: loss_of(own, b), batch)

        return step

    def anomaly() -> Step:
        inner = plain()

        def step() -> None:
            with torch.autograd.set_detect_anomaly(True):
                inner()

        return step

    def check(module: nn.Module, args: Any, output: Any) -> None:
        tensor = output[0] if isinstance(output, tuple) else output
        if not bool(torch.isfinite(tensor).all()):
            raise FloatingPointError(type(module).__name__)

    return {
        "A/A (plain)": plain(),
        "guard, two lines": two_line(),
        "guard, attempt": attempt(),
        "guard, every step sampled": two_line(policy=nantrap.Policy(sampling=nantrap.Sampling(magnitudes_every=1))),
        "guard, undo always": two_line(policy=nantrap.Policy(rollback=nantrap.Rollback(undo="always"))),
        "anomaly mode": anomaly(),
        "isfinite hooks": plain(check),
        "plain": plain(),
    }


def seconds_of(step: Step, count: int) -> float:
    """The time of a number of steps, as the mean of one."""
    start = time.perf_counter()
    for _ in range(count):
        step()
    return (time.perf_counter() - start) / count


def ratio(step: Step, plain: Step, pairs: int, *, block: int = 1) -> dict[str, float]:
    """Median ratio of a step to the plain one over adjacent pairs of blocks, with the spread of the middle half."""
    ratios, base = [], []
    for index in range(pairs):
        if index % 2:
            ours, theirs = seconds_of(step, block), seconds_of(plain, block)
        else:
            theirs, ours = seconds_of(plain, block), seconds_of(step, block)
        ratios.append(ours / theirs)
        base.append(theirs)
    low, _, high = statistics.quantiles(ratios, n=4)
    return {
        "ratio": statistics.median(ratios),
        "low": low,
        "high": high,
        "plain_ms": statistics.median(base) * 1e3,
    }


def measure(make: Any, pairs: int, *, block: int = 1) -> dict[str, dict[str, float]]:
    """Median ratio to the plain loop of each contestant, over adjacent pairs of blocks."""
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
        steps = contestants(make, folder)
        plain = steps.pop("plain")
        for step in (plain, *steps.values()):
            for _ in range(5):
                step()
        return {name: ratio(step, plain, pairs, block=block) for name, step in steps.items()}
    return {}


def measure_tensors(count: int, pairs: int) -> dict[str, float]:
    """Milliseconds of an optimizer step with so many parameter tensors, and what the guard adds to a whole step."""
    torch.manual_seed(0)

    def fresh() -> tuple[nn.ParameterList, torch.optim.Optimizer, Callable[[], Tensor]]:
        own = nn.ParameterList([nn.Parameter(torch.randn(64)) for _ in range(count)])
        parameters = list(own)
        return own, torch.optim.AdamW(parameters, lr=1e-4), lambda: torch.cat(parameters).square().mean()

    _, optimizer, plain_loss = fresh()
    model, guarded_optimizer, guarded_loss = fresh()
    updates: list[float] = []

    def plain() -> None:
        plain_loss().backward()
        start = time.perf_counter()
        optimizer.step()
        updates.append(time.perf_counter() - start)
        optimizer.zero_grad()

    with tempfile.TemporaryDirectory() as folder:
        guard = nantrap.Guard(model, guarded_optimizer, run_dir=folder, quiet=True)

        def guarded() -> None:
            guard.backward(guarded_loss())
            guard.step()

        for step in (plain, guarded):
            seconds_of(step, 10)
        updates.clear()
        extra = []
        for _ in range(pairs):
            theirs, ours = seconds_of(plain, 1), seconds_of(guarded, 1)
            extra.append(ours - theirs)
        guard.close()
    update, flag = statistics.median(updates) * 1e3, statistics.median(extra) * 1e3
    return {"optimizer_ms": update, "guard_ms": flag, "ratio": flag / update}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--pairs", type=int, default=200, help="pairs of steps for each line (the MLP takes ten times more)"
    )
    parser.add_argument(
        "--block", type=int, default=1, help="steps in a row of each; 200 shows the cost in a warm cache"
    )
    parser.add_argument("--only", choices=sorted(CASES))
    parser.add_argument("--tensors", action="store_true", help="the cost for 10, 1,000 and 5,000 parameter tensors")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--save", action="store_true", help="store the results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.tensors:
        by_count = {}
        for count in (10, 1_000, 5_000):
            row = by_count[count] = measure_tensors(count, arguments.pairs)
            if not arguments.json:
                print(
                    f"{count:5,d} tensors: the optimizer's step {row['optimizer_ms']:8.3f} ms, "
                    f"the guard adds {row['guard_ms']:7.3f} ms ({row['ratio']:.3f} of it)",
                    flush=True,
                )
        if arguments.json:
            print(json.dumps(by_count))
        if arguments.save:
            save("tensors", {f"{count:,}": row for count, row in by_count.items()})
        return
    results = {}
    for name, make in CASES.items():
        if arguments.only in (None, name):
            more = 10 if name == "mlp" and arguments.block == 1 else 1
            results[name] = measure(make, arguments.pairs * more, block=arguments.block)
            if not arguments.json:
                plain_ms = next(iter(results[name].values()))["plain_ms"]
                print(f"\n{name}: plain step {plain_ms:.2f} ms")
                for line, row in results[name].items():
                    print(f"  {line:22s} {row['ratio']:.3f}   ({row['low']:.3f} .. {row['high']:.3f})")
    if arguments.json:
        print(json.dumps(results))
    if arguments.save:
        save("overhead" if arguments.block == 1 else "overhead_blocks", results)


if __name__ == "__main__":
    main()
