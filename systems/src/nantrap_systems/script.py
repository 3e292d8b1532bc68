"""The command line of every `train.py`: an ordinary training script, with or without the guard."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from nantrap import finite
from nantrap.checkpoints import CheckpointStore, check_resume
from nantrap.errors import NantrapError, NonFiniteError, UsageError
from nantrap_systems.log import TRAINING_LOG, ProgressLine, TrainingLog, Voice, read_log
from nantrap_systems.settings import Length, parse_changes
from nantrap_systems.system import Run, System
from nantrap_systems.training import guard_of, train

BEFORE_NAN = "before-nan"
MILESTONE = 10
"""With `--keep`, every checkpoint whose number is a multiple of this one is never removed."""
PLAIN = "model.pt"
"""The newest checkpoint as `torch.load` reads it: `torch.load(path)["model"]` are the weights."""


def main(system: System, arguments: Sequence[str] | None = None) -> int:
    """Train, evaluate, save. Exit code 0; 2 wrong use; 3 the guard stopped the run."""
    options = make_parser(system).parse_args(arguments)
    torch.set_num_threads(options.threads)
    voice = Voice()
    try:
        return _main(system, options, voice)
    except NonFiniteError as error:
        voice.say(f"stopped: {error}")
        return 3
    except NantrapError as error:
        voice.say(f"error: {error}")
        return 2
    finally:
        voice.close()


def _main(system: System, options: argparse.Namespace, voice: Voice) -> int:
    """Train a system as its options say, and resume, guard, log and save if asked; gives the exit code."""
    fault = system.fault(options.fault) if options.fault else None
    changes = _changes(system, options)
    store = _store(options)
    which, asked = _checkpoint(system, options, changes)
    if which is not None and store is None:
        raise UsageError(f"{asked} needs --run-dir, where the checkpoints are")
    start = store.load(which, rng=False).step if store is not None and which is not None else 0
    run = system.run(
        fault=fault,
        config=options.config,
        changes=changes,
        steps=_total_steps(system, options, changes, start),
        seed=options.seed,
    )
    for text in (*run.facts, *run.notes):
        voice.say(text)
    count = sum(parameter.numel() for parameter in run.model.parameters())
    voice.say(f"{system.name}: {count:,} parameters" + (f", fault {fault.name}" if fault else ""))
    guard = guard_of(run, run_dir=options.run_dir, store=store) if options.guard else None
    try:
        start = _resume(run, store, guard, which, options, voice) if store is not None and which is not None else 0
        log = TrainingLog(options.run_dir, start=start if which is not None else None) if options.run_dir else None
        if options.run_dir is not None:
            voice.write_to(options.run_dir)
        try:
            _train(system, run, options, start=start, store=store, guard=guard, log=log, voice=voice)
        finally:
            if log is not None:
                log.close()
                voice.say(f"log: {log.path}")
    finally:
        if guard is not None:
            guard.close()
    return 0


def _store(options: argparse.Namespace) -> CheckpointStore | None:
    """Where checkpoints are kept: all of them, or the newest `--keep` and the milestones."""
    if options.keep is not None and options.keep < 1:
        raise UsageError(f"--keep {options.keep}: at least 1")
    return (
        CheckpointStore(options.run_dir / "checkpoints", keep=options.keep or sys.maxsize) if options.run_dir else None
    )


def _checkpoint(
    system: System, options: argparse.Namespace, changes: Mapping[str, Any]
) -> tuple[str | int | None, str]:
    """From which checkpoint the run continues, `None` for a new run; and in words who asked for it."""
    if options.resume == BEFORE_NAN:
        return (_before_nan(options) if options.run_dir else 0), f"--resume {BEFORE_NAN}"
    if options.resume:
        return (int(options.resume) if options.resume.isdigit() else options.resume), "--resume"
    milestone = system.settings_of(config=options.config, changes=changes).length.milestone
    step = milestone * options.save_every
    return (step, f"the configuration's milestone ({milestone}, step {step})") if milestone else (None, "")


def _before_nan(options: argparse.Namespace) -> int:
    """The step of the newest checkpoint before the first step of the log that went wrong."""
    if not (options.run_dir / TRAINING_LOG).is_file():
        raise UsageError(f"--resume {BEFORE_NAN}: {options.run_dir / TRAINING_LOG}: no such file")
    bad = next((row["step"] for row in read_log(options.run_dir) if row["loss"] is None or "incident" in row), None)
    if bad is None:
        raise UsageError(
            f"--resume {BEFORE_NAN}: {options.run_dir / TRAINING_LOG} has neither a bad loss nor an incident"
        )
    saved = [each.step for each in CheckpointStore(options.run_dir / "checkpoints").checkpoints() if each.step <= bad]
    if not saved:
        raise UsageError(f"--resume {BEFORE_NAN}: step {bad} is the first bad one, and no checkpoint is older")
    return max(saved)


def _total_steps(system: System, options: argparse.Namespace, changes: Mapping[str, Any], start: int) -> int:
    """How many steps the run has when it ends: those before its checkpoint, and those asked for."""
    configured: Length = system.settings_of(config=options.config, changes=changes).length
    for name in ("steps", "epochs"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            raise UsageError(f"--{name} {getattr(options, name)}: at least 1")
    if options.epochs is not None:
        return start + int(options.epochs) * configured.epoch
    if options.steps is not None:
        return start + int(options.steps)
    if start >= configured.steps:
        raise UsageError(
            f"the checkpoint is of step {start}, and the configured run has {configured.steps}; --steps trains on"
        )
    return configured.steps


def _train(
    system: System,
    run: Run,
    options: argparse.Namespace,
    *,
    start: int,
    store: CheckpointStore | None,
    guard: Any,
    log: TrainingLog | None,
    voice: Voice,
) -> None:
    """Train, and after each step print, log, evaluate and save what is due."""
    steps = _total_steps(system, options, _changes(system, options), start) - start
    line = ProgressLine(steps, start=start, epoch_steps=run.epoch_steps, voice=voice)
    run.begin_epoch = _checked(run, run.begin_epoch, voice)
    for done in train(run, steps=steps, start=start, guard=guard):
        step, lr = done.number + 1, run.optimizer.param_groups[0]["lr"]
        line.show(done, lr)
        if done.incident is not None:  # the guard has printed it
            named = [f"{cause.code} {cause.title}" for cause in done.incident.causes[:1]] or ["no cause was named"]
            voice.note(f"ERROR: NaN or Inf in step {done.number}: {named[0]}")
        last, ends = step == start + steps, step % run.epoch_steps == 0
        if log is not None:
            watched = run.watched() if run.watched is not None and (ends or last) else None
            log.write(done, lr=lr, epoch=done.number // run.epoch_steps + 1, watched=watched)
        if ends and run.describe is not None:
            voice.say(f"after epoch {step // run.epoch_steps}: {run.describe()}")
        if last or step % options.evaluate_every == 0:
            _evaluate(system, run, step, voice)
        if store is not None and (last or step % options.save_every == 0):
            milestone = step % (options.save_every * MILESTONE) == 0
            _save(store, run, step, guard, voice, pin=options.keep is not None and milestone)


def _changes(system: System, options: argparse.Namespace) -> dict[str, Any]:
    """The settings that the options change."""
    changes: dict[str, Any] = parse_changes(options.set)
    if options.lr is not None:
        changes[system.lr_setting] = options.lr
    for flag in system.flags:
        value = getattr(options, flag.name.strip("-").replace("-", "_"))
        if value is not None and value is not False:
            changes[flag.setting] = value
    return changes


def _resume(run: Run, store: CheckpointStore, guard: Any, which: Any, options: argparse.Namespace, voice: Voice) -> int:
    """Load the checkpoint, and compare its learning rate with the configured one."""
    group = run.optimizer.param_groups[0]
    configured = float(group.get("max_lr", group.get("initial_lr", group["lr"])))
    take = "configured" if options.take_configured_lr else "restored"
    if guard is not None:
        start = int(guard.load(which).step)
        found = guard.check_resume(lr=configured, step=start, take=take)
    else:
        start = store.load(which, **_state(run)).step
        found = check_resume(
            model=run.model,
            optimizer=run.optimizer,
            scheduler=run.scheduler,
            scaler=run.scaler,
            lr=configured,
            step=start,
            take=take,
        )
    voice.say(f"resumed after step {start}, learning rate {run.optimizer.param_groups[0]['lr']:.3g}")
    for finding in found:
        voice.say("warning: " + str(finding).split("\n", 1)[0])
    if take == "restored" and any(finding.kind == "rate" for finding in found):
        voice.say("help: --take-configured-lr trains on at the learning rate of the configuration")
    return start


def _checked(run: Run, begin_epoch: Any, voice: Voice) -> Any:
    """Before each epoch, check parameters and buffers, and print the result."""

    def begin(this: Run) -> None:
        if begin_epoch is not None:
            begin_epoch(this)
        named = {**dict(this.model.named_parameters()), **dict(this.model.named_buffers())}
        bad = [name for name, tensor in named.items() if finite.any_nonfinite([tensor])]
        found = "ok" if not bad else f"NaN or Inf in {len(bad)} of {len(named)}, the first is {bad[0]}"
        voice.say(f"Checking model parameters before epoch {this.step // run.epoch_steps + 1} ... {found}")

    return begin


def _state(run: Run) -> dict[str, Any]:
    return {
        "model": run.model,
        "optimizer": run.optimizer,
        "scheduler": run.scheduler,
        "scaler": run.scaler,
        "ema": run.ema,
    }


def _save(store: CheckpointStore, run: Run, step: int, guard: Any, voice: Voice, *, pin: bool) -> None:
    try:
        path = guard.save(pin=pin) if guard is not None else store.save(step=step, pin=pin, **_state(run))
    except NonFiniteError as error:  # a plain run continues, as it would have
        voice.say(f"no checkpoint: {error}")
        return
    torch.save({"step": step, "model": run.model.state_dict()}, store.folder / PLAIN)
    voice.say(f"checkpoint: {path}")


def _evaluate(system: System, run: Run, step: int, voice: Voice) -> None:
    found = run.evaluate()
    steps = "1 step" if step == 1 else f"{step:,} steps"
    voice.say(f"evaluation after {steps}: loss {found.loss:.4f}, {system.quality} {found.quality:.1%}")
    if run.evaluate_ema is not None:
        averaged = run.evaluate_ema()
        voice.say(f"  averaged weights: loss {averaged.loss:.4f}, {system.quality} {averaged.quality:.1%}")


def make_parser(system: System) -> argparse.ArgumentParser:
    """The options of a system's `train.py`."""
    parser = argparse.ArgumentParser(
        prog=f"python -m nantrap_systems.{system.name}.train", description=f"{system.name}: {system.title}."
    )
    add = parser.add_argument
    add("--config", type=Path, help=f"settings (default: {system.config.name} next to the script)")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="change one setting; may be repeated")
    add("--lr", metavar="RATE", help=f"the learning rate, the same as --set {system.lr_setting}=RATE")
    for flag in system.flags:
        if flag.switch:
            add(flag.name, action="store_true", help=flag.help)
        else:
            add(flag.name, metavar="VALUE", help=flag.help)
    add("--steps", type=int, help="how many steps to train (default: as configured)")
    add("--epochs", type=int, metavar="N", help="how many epochs to train, instead of --steps")
    add("--seed", type=int, default=8, help="of weights, batches and noise (default: 8)")
    add("--fault", metavar="NAME", help=f"switch a fault on: {', '.join(each.name for each in system.faults)}")
    add("--guard", action="store_true", help="train under nantrap's guard")
    add("--run-dir", type=Path, metavar="DIR", help="where logs, checkpoints, journal and incidents go")
    add(
        "--resume",
        metavar="WHICH",
        help=f"continue from a checkpoint in --run-dir: last_good, latest, a step, a path, or {BEFORE_NAN}: the newest "
        "one before the first bad step of the log",
    )
    add(
        "--keep",
        type=int,
        metavar="N",
        help=f"keep the newest N checkpoints and every {MILESTONE}th, a milestone (default: all)",
    )
    add(
        "--take-configured-lr",
        action="store_true",
        help="after --resume, use the learning rate of the configuration, not the one in the checkpoint",
    )
    add("--evaluate-every", type=int, default=100, metavar="N", help="steps between evaluations (default: 100)")
    add("--save-every", type=int, default=100, metavar="N", help="steps between checkpoints (default: 100)")
    add("--threads", type=int, default=1, metavar="N", help="threads of torch (default: 1)")
    return parser
