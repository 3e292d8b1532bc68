"""The command line of every `train.py`: an ordinary training script, with or without the guard."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from nantrap.errors import NantrapError, NonFiniteError
from nantrap.systems.progress import ProgressLine
from nantrap.systems.saving import resume, save
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
    start = resume(run, options.resume) if options.resume else 0
    checkpoint = options.run_dir / "checkpoints" / "last.pt" if options.run_dir else None
    count = sum(parameter.numel() for parameter in run.model.parameters())
    _say(f"{system.name}: {count:,} parameters" + (f", fault {fault.name}" if fault else ""))
    guard = guard_of(run, run_dir=options.run_dir) if options.guard else None
    line = ProgressLine(options.steps, start=start)
    step = start
    try:
        for done in train(run, steps=options.steps, start=start, guard=guard):
            step = done.number + 1
            line.show(done, run.optimizer.param_groups[0]["lr"])
            if step % options.evaluate_every == 0:
                _evaluate(system, run, step)
            if checkpoint is not None and step % options.save_every == 0:
                save(run, checkpoint, step=step)
    finally:
        if guard is not None:
            guard.close()
    if step % options.evaluate_every:
        _evaluate(system, run, step)
    if checkpoint is not None:
        save(run, checkpoint, step=step)
        _say(f"checkpoint: {checkpoint}")
    return 0


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
    add("--seed", type=int, default=0, help="of weights, batches and noise (default: 0)")
    add("--fault", metavar="NAME", help=f"switch a fault on: {', '.join(each.name for each in system.faults)}")
    add("--guard", action="store_true", help="train under nantrap's guard")
    add("--run-dir", type=Path, metavar="DIR", help="where the checkpoint, the journal and the incidents go")
    add("--resume", type=Path, metavar="FILE", help="go on from a checkpoint")
    add("--evaluate-every", type=int, default=100, metavar="N", help="steps between evaluations (default: 100)")
    add("--save-every", type=int, default=100, metavar="N", help="steps between checkpoints (default: 100)")
    add("--threads", type=int, default=1, metavar="N", help="threads of torch (default: 1)")
    return parser


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)  # noqa: T201
