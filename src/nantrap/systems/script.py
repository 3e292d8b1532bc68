"""The command line of every `train.py`: an ordinary training script, with or without the guard."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from nantrap.checkpoints import CheckpointStore
from nantrap.errors import NantrapError, NonFiniteError, UsageError
from nantrap.systems.progress import ProgressLine
from nantrap.systems.settings import parse_changes
from nantrap.systems.system import Run, System
from nantrap.systems.training import guard_of, train


def main(system: System, arguments: Sequence[str] | None = None) -> int:
    """Train, evaluate, save. Exit code 0; 2 wrong use; 3 the guard stopped the run."""
    options = _parser(system).parse_args(arguments)
    torch.set_num_threads(options.threads)
    try:
        return _main(system, options)
    except NonFiniteError as error:
        _say(f"stopped: {error}")
        return 3
    except NantrapError as error:
        _say(f"error: {error}")
        return 2


def _main(system: System, options: argparse.Namespace) -> int:
    fault = system.fault(options.fault) if options.fault else None
    run = system.run(fault=fault, config=options.config, changes=parse_changes(options.set), seed=options.seed)
    store = CheckpointStore(options.run_dir / "checkpoints") if options.run_dir else None
    if options.resume and store is None:
        raise UsageError("--resume needs --run-dir, where the checkpoints are")
    step = start = store.load(options.resume, **_state(run)).step if store and options.resume else 0
    count = sum(parameter.numel() for parameter in run.model.parameters())
    _say(f"{system.name}: {count:,} parameters" + (f", fault {fault.name}" if fault else ""))
    guard = guard_of(run, run_dir=options.run_dir) if options.guard else None
    line = ProgressLine(options.steps, start=start)
    try:
        for done in train(run, steps=options.steps, start=start, guard=guard):
            step = done.number + 1
            line.show(done, run.optimizer.param_groups[0]["lr"])
            last = step == start + options.steps
            if last or step % options.evaluate_every == 0:
                _evaluate(system, run, step)
            if store is not None and (last or step % options.save_every == 0):
                _save(store, run, step)
    finally:
        if guard is not None:
            guard.close()
    return 0


def _state(run: Run) -> dict[str, Any]:
    return {
        "model": run.model,
        "optimizer": run.optimizer,
        "scheduler": run.scheduler,
        "scaler": run.scaler,
        "ema": run.ema,
    }


def _save(store: CheckpointStore, run: Run, step: int) -> None:
    try:
        _say(f"checkpoint: {store.save(step=step, **_state(run))}")
    except NonFiniteError as error:  # a plain run goes on all the same, as it would have
        _say(f"no checkpoint: {error}")


def _evaluate(system: System, run: Run, step: int) -> None:
    found = run.evaluate()
    _say(f"evaluation after {step:,} steps: loss {found.loss:.4f}, {system.quality} {found.quality:.1%}")


def _parser(system: System) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m nantrap.systems.{system.name}.train", description=f"{system.name}: {system.title}."
    )
    add = parser.add_argument
    add("--config", type=Path, help=f"settings (default: {system.config.name} beside the script)")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="change one setting; may be repeated")
    add("--steps", type=int, default=100, help="how many steps to train (default: 100)")
    add("--seed", type=int, default=8, help="of weights, batches and noise (default: 8)")
    add("--fault", metavar="NAME", help=f"switch a fault on: {', '.join(each.name for each in system.faults)}")
    add("--guard", action="store_true", help="train under nantrap's guard")
    add("--run-dir", type=Path, metavar="DIR", help="where checkpoints, journal and incidents go")
    add("--resume", metavar="WHICH", help="go on from a checkpoint in --run-dir: last_good, latest, a step or a path")
    add("--evaluate-every", type=int, default=100, metavar="N", help="steps between evaluations (default: 100)")
    add("--save-every", type=int, default=100, metavar="N", help="steps between checkpoints (default: 100)")
    add("--threads", type=int, default=1, metavar="N", help="threads of torch (default: 1)")
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201
