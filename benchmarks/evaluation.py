"""What watching an evaluation costs: the ratio of a call of the model that is watched to one that is not.

    python benchmarks/evaluation.py [--pairs 300] [--only transformer|cnn|mlp] [--json]

One process, one thread, under `no_grad`, the model in eval mode. Two copies of the model take turns: one is watched as
`nantrap run` watches a model (a guard with an optimizer, and a model without one), the other is not. Each ratio is of
two adjacent calls; the median over all pairs is printed, with the spread of the middle half. The A/A line compares the
unwatched copy with itself: what it shows beyond 1.000 is the noise of the machine.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from overhead import cnn, mlp, transformer
from torch import nn

import nantrap
from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings

MODELS = {"transformer": transformer, "cnn": cnn, "mlp": mlp}


def guarded(model: nn.Module) -> nn.Module:
    """The model with a guard, as in a training script."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    model.nantrap_guard = nantrap.Guard(model, optimizer)  # type: ignore[assignment]
    return model


def ratios(plain: Callable[[], Any], watched: Callable[[], Any], pairs: int) -> list[float]:
    """The ratio of adjacent calls, in alternating order."""
    found = []
    for number in range(pairs + 10):
        times = {}
        for name, call in (("a", plain), ("b", watched))[:: 1 if number % 2 else -1]:
            began = time.perf_counter()
            call()
            times[name] = time.perf_counter() - began
        if number >= 10:
            found.append(times["b"] / times["a"])
    return found


def measure(name: str, pairs: int) -> dict[str, Any]:
    """All contestants on one model."""
    torch.manual_seed(0)
    model, batch, _ = MODELS[name]()
    model.eval()
    given = batch[0] if isinstance(batch, tuple) else batch
    plain = copy.deepcopy(model)
    contestants = {"A/A": copy.deepcopy(model), "Guard": guarded(copy.deepcopy(model))}
    lines: dict[str, Any] = {}
    with torch.no_grad():
        for title, watched in contestants.items():
            lines[title] = ratios(lambda: plain(given), lambda m=watched: m(given), pairs)  # type: ignore[misc]
        with attached(RunSettings(quiet=True, run_dir="/tmp/nantrap-evaluation")) as attachment:
            alone = copy.deepcopy(model)
            attachment.registry.inference.watch(alone)
            lines["nantrap run, no optimizer"] = ratios(lambda: plain(given), lambda: alone(given), pairs)
        began = time.perf_counter()
        for _ in range(20):
            plain(given)
        one = (time.perf_counter() - began) / 20
    return {"milliseconds": 1e3 * one, **{title: _spread(found) for title, found in lines.items()}}


def _spread(found: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(found, n=4)
    return {"low": low, "median": middle, "high": high}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=300)
    parser.add_argument("--only", choices=sorted(MODELS))
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {name: measure(name, arguments.pairs) for name in ([arguments.only] if arguments.only else MODELS)}
    if arguments.json:
        print(json.dumps(found))
        return
    for name, result in found.items():
        print(f"{name}: a call takes {result.pop('milliseconds'):.2f} ms")
        for title, spread in result.items():
            print(f"    {title:38} {spread['median']:.4f}  ({spread['low']:.3f} to {spread['high']:.3f})")


if __name__ == "__main__":
    main()
