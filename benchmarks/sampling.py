"""What it costs to sample a step: processor time of a sampled step against one that is not, in adjacent pairs.

    python benchmarks/sampling.py [--pairs 100]

The guard samples the magnitudes of module outputs in every 64th step (`Sampling(magnitudes_every=64)`), so a run pays a
64th of what is printed beyond 1. Processor time, so that it can be measured on a machine with neighbours.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
from overhead import CASES

import nantrap


def guarded(case: str, *, every: int) -> Callable[[], object]:
    """A step of the two-line form, sampled every N steps."""
    torch.manual_seed(0)
    model, batch, loss = CASES[case]()
    model = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    policy = nantrap.Policy(sampling=nantrap.Sampling(magnitudes_every=every))
    guard = nantrap.Guard(model, optimizer, max_grad_norm=1.0, policy=policy, quiet=True)

    def step() -> object:
        guard.backward(loss(model, batch))
        return guard.step()

    return step


def seconds_of(step: Callable[[], object]) -> float:
    """Processor time of one step."""
    start = time.process_time()
    step()
    return time.process_time() - start


def main() -> None:
    """Print the ratio for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=100)
    pairs = parser.parse_args().pairs
    torch.set_num_threads(1)
    for case in CASES:
        never, always = guarded(case, every=0), guarded(case, every=1)
        for step in (never, always):
            for _ in range(5):
                step()
        taken = [(seconds_of(never), seconds_of(always)) for _ in range(pairs)]
        ratio = statistics.median(b / a for a, b in taken)
        plain = statistics.median(a for a, _ in taken) * 1e3
        print(f"{case:<12} {plain:8.2f} ms, sampled {ratio:.3f}, of a run {100 * (ratio - 1) / 64:+.2f} %")


if __name__ == "__main__":
    main()
