"""What `nantrap run` costs: a healthy step as a ratio to the plain loop, and the start of an empty script in seconds.

    python benchmarks/launch.py [--pairs 200] [--block 1] [--starts 15] [--only transformer|cnn|mlp|start] [--save]

One process, one thread. The guarded loop and the plain one take turns, each on its own copy of the model; the plain one
calls PyTorch's own functions, taken before the wrappers were put in their place. The journal is on, the policy is the
default one. The A/A line compares the plain loop with itself. A start is a whole process: `nantrap run` of a script
that only imports torch, against `python` with the same script, in turns. `--save` stores what was measured in
`benchmarks/results`.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from overhead import CASES, ratio
from stored import save
from torch import nn

from nantrap.launch.attach import attached
from nantrap.launch.settings import RunSettings

Step = Callable[[], object]


def measure(make: Any, pairs: int, *, block: int = 1) -> dict[str, dict[str, float]]:
    """Median ratio to the plain loop, over adjacent pairs."""
    torch.manual_seed(0)
    model, batch, loss_of = make()
    backward, clip = torch.autograd.backward, nn.utils.clip_grad_norm_
    torch.optim.AdamW([nn.Parameter(torch.zeros(1))])
    update, clear = torch.optim.AdamW.step, torch.optim.AdamW.zero_grad

    def plain() -> Step:
        own = copy.deepcopy(model)
        optimizer = torch.optim.AdamW(own.parameters(), lr=1e-4)

        def step() -> None:
            backward(loss_of(own, batch))
            clip(own.parameters(), 1.0)
            update(optimizer)
            clear(optimizer)

        return step

    def guarded() -> Step:
        own = copy.deepcopy(model)
        optimizer = torch.optim.AdamW(own.parameters(), lr=1e-4)

        def step() -> None:
            loss_of(own, batch).backward()
            nn.utils.clip_grad_norm_(own.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

        return step

    base, other = plain(), plain()
    with tempfile.TemporaryDirectory() as folder, attached(RunSettings(run_dir=folder, quiet=True)):
        contestants = {"A/A (plain)": other, "nantrap run": guarded()}
        for step in (base, *contestants.values()):
            for _ in range(5):
                step()
        return {name: ratio(step, base, pairs, block=block) for name, step in contestants.items()}


def measure_start(times: int) -> dict[str, float]:
    """Seconds from the start of a process to its end, for a script that imports torch and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "empty.py")
        script.write_text("import torch\n")
        commands = {"python": [sys.executable], "nantrap run": [sys.executable, "-m", "nantrap", "run", "--quiet"]}
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(times):
            for name, command in commands.items():
                began = time.perf_counter()
                subprocess.run([*command, str(script)], check=True, cwd=folder)
                taken[name].append(time.perf_counter() - began)
    extra = [ours - theirs for ours, theirs in zip(taken["nantrap run"], taken["python"], strict=True)]
    return {
        "python": statistics.median(taken["python"]),
        "nantrap run": statistics.median(taken["nantrap run"]),
        "extra": statistics.median(extra),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200, help="pairs of steps (the MLP takes ten times more)")
    parser.add_argument(
        "--block", type=int, default=1, help="steps in a row of each; 200 shows the cost in a warm cache"
    )
    parser.add_argument("--starts", type=int, default=15, help="processes of each kind")
    parser.add_argument("--only", choices=[*sorted(CASES), "start"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--save", action="store_true", help="store the results")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name, make in CASES.items():
        if arguments.only in (None, name):
            more = 10 if name == "mlp" and arguments.block == 1 else 1
            results[name] = measure(make, arguments.pairs * more, block=arguments.block)
    if arguments.only in (None, "start"):
        results["start"] = measure_start(arguments.starts)
    if arguments.save:
        save("launch" if arguments.block == 1 else "launch_blocks", results)
    if arguments.json:
        print(json.dumps(results))
        return
    for name, rows in results.items():
        if name == "start":
            print(f"\nstart: {' · '.join(f'{key} {value:.2f} s' for key, value in rows.items())}")
            continue
        print(f"\n{name}: plain step {rows['A/A (plain)']['plain_ms']:.2f} ms")
        for line, row in rows.items():
            print(f"  {line:14s} {row['ratio']:.3f}   ({row['low']:.3f} .. {row['high']:.3f})")


if __name__ == "__main__":
    main()
