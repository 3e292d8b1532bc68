"""How the guard's cost grows: with parameters, parameter tensors, modules, the batch, and ranks; a table and a picture.

    python benchmarks/growth.py [--pairs 15] [--only parameters tensors modules batch ranks] [--largest 10000000]

The two-line form takes turns with the plain loop in one process with one thread; the control is a second plain loop.
The ratio of a point is the median over pairs of adjacent blocks, with the middle half, in processor time, so that other
processes disturb it less. What the guard adds is its ratio beyond the control's, times the plain step. Gradients are
clipped by both, so that the norm is taken by both. The ranks are those of `benchmarks/distributed.py`, by their own
processor time. Results go to `benchmarks/results/growth.json` and the picture to `docs/pictures/growth.svg`;
`python -m zoo.tables` writes the table into docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

import nantrap

sys.path[:0] = [str(Path(__file__).resolve().parent)]  # a rank is a process that imports this file by its path
from distributed import work  # noqa: E402
from stored import save  # noqa: E402

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "pictures" / "growth.svg"
Made = tuple[nn.Module, Callable[[nn.Module], Tensor]]


def parameters(size: int) -> Made:
    """Four linear layers that hold so many weights."""
    width = int((size / 4) ** 0.5)
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(4)))
    x = torch.randn(4, width)
    return model, lambda m: m(x).square().mean()


def tensors(size: int) -> Made:
    """So many parameters of 64 values each in one module."""
    model = nn.ParameterList([nn.Parameter(torch.randn(64)) for _ in range(size)])
    return model, lambda m: torch.cat(list(m.parameters())).square().mean()


def modules(size: int) -> Made:
    """So many modules without parameters, and one with."""
    model = nn.Sequential(nn.Linear(64, 64), *(nn.Tanh() for _ in range(size)))
    x = torch.randn(4, 64)
    return model, lambda m: m(x).square().mean()


def batch(size: int) -> Made:
    """One model, and batches of so many samples."""
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 16))
    x = torch.randn(size, 256)
    return model, lambda m: m(x).square().mean()


AXES = {
    "parameters": (parameters, (100_000, 1_000_000, 10_000_000, 100_000_000)),
    "tensors": (tensors, (10, 100, 1_000, 5_000)),
    "modules": (modules, (10, 100, 1_000)),
    "batch": (batch, (16, 128, 1_024, 8_192)),
}
RANKS = (2, 4)


def measure(make: Callable[[int], Made], size: int, pairs: int, folder: str) -> dict[str, float]:
    """The guarded loop and a second plain one against the plain one."""
    torch.manual_seed(0)
    model, loss_of = make(size)

    def plain() -> Callable[[], None]:
        own = copy.deepcopy(model)
        optimizer = torch.optim.SGD(own.parameters(), lr=1e-4)

        def step() -> None:
            loss_of(own).backward()
            torch.nn.utils.clip_grad_norm_(own.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return step

    def guarded() -> Callable[[], None]:
        own = copy.deepcopy(model)
        optimizer = torch.optim.SGD(own.parameters(), lr=1e-4)
        run_dir = tempfile.mkdtemp(dir=folder)
        guard = nantrap.Guard(own, optimizer, max_grad_norm=1.0, run_dir=run_dir, quiet=True)

        def step() -> None:
            guard.backward(loss_of(own))
            guard.step()

        return step

    loops = {"plain": plain(), "control": plain(), "guarded": guarded()}
    for step in loops.values():
        for _ in range(3):
            step()
    once = _seconds(loops["plain"], 1)
    block = max(1, min(50, int(0.01 / once)))
    times: dict[str, list[float]] = {name: [] for name in loops}
    for index in range(pairs):
        order = list(loops) if index % 2 else list(reversed(loops))
        for name in order:
            times[name].append(_seconds(loops[name], block))
    row = {"size": float(size), "plain_ms": statistics.median(times["plain"]) * 1e3}
    for name in ("guarded", "control"):
        ratios = [a / b for a, b in zip(times[name], times["plain"], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        row |= {name: statistics.median(ratios), f"{name}_low": low, f"{name}_high": high}
    row["added_ms"] = (row["guarded"] - row["control"]) * row["plain_ms"]
    return {name: round(value, 4) for name, value in row.items()}


def _seconds(step: Callable[[], None], count: int) -> float:
    """Processor time of a step: what other processes take does not count."""
    begin = time.process_time()
    for _ in range(count):
        step()
    return (time.process_time() - begin) / count


def measure_ranks(world: int, steps: int) -> dict[str, float]:
    """The same over ranks of DistributedDataParallel: the guard against one exchange of flags in the plain loop."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, args=(world, steps, folder), nprocs=world, join=True)  # type: ignore[no-untyped-call]
        found = json.loads(Path(folder, f"result-{world}.json").read_text(encoding="utf-8"))
    plain = found["plain"]["processor_ms"]
    return {
        "size": world, "plain_ms": round(plain, 4), "guarded": round(found["guarded"]["processor_ms"] / plain, 4),
        "control": round(found["control"]["processor_ms"] / plain, 4),
        "added_ms": round(found["guarded"]["processor_ms"] - found["control"]["processor_ms"], 4),
    }  # fmt: skip


def draw(axes: dict[str, list[dict[str, float]]]) -> None:
    """One small picture for each axis: the ratio of the guard and of the control."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "growth"
    figure, places = plt.subplots(1, len(axes), figsize=(3 * len(axes), 2.8), sharey=True)
    for place, (name, rows) in zip(places, axes.items(), strict=True):
        sizes = [row["size"] for row in rows]
        for line, colour in (("guarded", "#b03a2e"), ("control", "#7f8c8d")):
            place.plot(sizes, [row[line] for row in rows], marker="o", color=colour, label=line)
            if f"{line}_low" in rows[0]:
                edges = ([row[f"{line}_{edge}"] for row in rows] for edge in ("low", "high"))
                place.fill_between(sizes, *edges, color=colour, alpha=0.15)
        place.set_xscale("log", base=2 if name == "ranks" else 10)
        place.set_title(name)
        place.axhline(1, color="#cccccc", linewidth=0.8)
    places[0].set_ylabel("ratio to the plain step")
    places[0].legend()
    figure.tight_layout()
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, metadata={"Date": None})


def main() -> None:
    """Measure, store and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=15, help="pairs of blocks for each point (default: %(default)s)")
    parser.add_argument("--only", nargs="+", choices=[*AXES, "ranks"], default=[*AXES, "ranks"])
    parser.add_argument("--largest", type=int, default=100_000_000, help="leave out larger sizes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.only:
        rows = []
        if name == "ranks":
            rows = [measure_ranks(world, 4 * arguments.pairs) for world in RANKS]
        else:
            make, sizes = AXES[name]
            with tempfile.TemporaryDirectory() as folder:
                rows = [measure(make, n, arguments.pairs, folder) for n in sizes if n <= arguments.largest]
        print(name, *rows, sep="\n  ", flush=True)
        stored = save("growth", {name: {f"{row['size']:,.0f}": row for row in rows}})
    draw({name: list(part["found"].values()) for name, part in stored.items()})


if __name__ == "__main__":
    main()
