"""How well and how fast a failure is located: nantrap in both forms, anomaly mode and a module-hook detector.

    python benchmarks/locate.py [NAME ...]        default: everyday_failures and held_back

A name is a family, a collection or a program of the zoo; every program knows its own answer (see zoo/README.md).
Counted are programs with the right step of the first alarm, the right place, and alarms on healthy controls. A place is
right when phase, module and operation are; where the answer is a bad tensor and no operation (`data`, `state`,
`aten.empty`), phase and module decide. The two others cannot say all of that and are judged kindly: anomaly mode by the
node alone, the hook detector by the module alone.

A diagnosis is what the failed step takes longer than a healthy one, in milliseconds and in plain steps of the program.
Most of these programs take well under a millisecond per step, so fixed costs dominate; `--large` adds a transformer.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import nantrap

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the zoo is beside the benchmarks
from zoo.loading import (
    Case,
    batches,
    find,
    is_control,
    is_place,
    load,
    loss_function,
    module_of,
    operation_of_node,
)


class Alarm(NamedTuple):
    """The first alarm of a run: its step, what was said about the place, and how long that step took."""

    step: int
    phase: str | None = None
    module: str | None = None
    op: str | None = None
    node: str | None = None
    seconds: float = 0.0


@dataclass
class Tally:
    """What one method did over all programs."""

    bugs: int = 0
    step: int = 0
    place: int = 0
    controls: int = 0
    false_alarms: int = 0
    milliseconds: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    overhead: list[float] = field(default_factory=list)


def plain_step(case: Case, loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
    case["optimizer"].step()
    case["optimizer"].zero_grad()


# ---- the methods: each runs a case and gives its first alarm, and the times of the steps before it


def plain(case: Case) -> tuple[Alarm | None, list[float]]:
    compute, times = loss_function(case), []
    for step, batch in enumerate(batches(case)):
        begin = time.perf_counter()
        with contextlib.suppress(RuntimeError):
            plain_step(case, compute(batch))
        times.append(time.perf_counter() - begin)
        if step == case["truth"]["first_bad_step"]:
            break
    return None, times


def guarded(form: str) -> Callable[[Case], tuple[Alarm | None, list[float]]]:
    def run(case: Case) -> tuple[Alarm | None, list[float]]:
        compute, times = loss_function(case), []
        policy = nantrap.Policy(diagnose="locate")
        guard = nantrap.Guard(case["model"], case["optimizer"], max_grad_norm=None, policy=policy, quiet=True)
        for step, batch in enumerate(batches(case)):
            begin = time.perf_counter()
            if form == "attempt":
                outcome = guard.attempt(compute, batch)
            else:
                guard.backward(compute(batch))
                outcome = guard.step()
            took = time.perf_counter() - begin
            found = outcome.incident
            if found is not None:
                return Alarm(step, found.phase, found.module, found.op, found.node, took), times
            times.append(took)
        return None, times

    return run


def anomaly_mode(case: Case) -> tuple[Alarm | None, list[float]]:
    compute, times = loss_function(case), []
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(True):
        warnings.simplefilter("ignore")
        for step, batch in enumerate(batches(case)):
            begin = time.perf_counter()
            try:
                plain_step(case, compute(batch))
            except RuntimeError as error:
                words = str(error).split("'")
                node = words[1] if len(words) > 1 and "returned nan" in str(error) else None
                return Alarm(step, "backward", None, None, node, time.perf_counter() - begin), times
            times.append(time.perf_counter() - begin)
    return None, times


def hook_detector(case: Case) -> tuple[Alarm | None, list[float]]:
    """The usual home-made one: `isfinite` on every module's output, on the loss and on the gradients."""
    compute, times, first = loss_function(case), [], []

    def check(name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Any) -> None:
            tensors = output if isinstance(output, (tuple, list)) else (output,)
            if not first and any(isinstance(t, Tensor) and not bool(t.isfinite().all()) for t in tensors):
                first.append(name)

        return hook

    handles = [module.register_forward_hook(check(name)) for name, module in case["model"].named_modules()]
    try:
        for step, batch in enumerate(batches(case)):
            begin = time.perf_counter()
            loss = compute(batch)
            if first or not bool(loss.isfinite()):
                name = (first[0] if first else "") or "loss"
                return Alarm(step, "forward", name, seconds=time.perf_counter() - begin), times
            loss.backward()  # type: ignore[no-untyped-call]
            bad = [n for n, p in case["model"].named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
            if bad:
                owner = bad[0].rpartition(".")[0] or "loss"
                return Alarm(step, "backward", owner, seconds=time.perf_counter() - begin), times
            case["optimizer"].step()
            case["optimizer"].zero_grad()
            times.append(time.perf_counter() - begin)
    finally:
        for handle in handles:
            handle.remove()
    return None, times


METHODS: dict[str, Callable[[Case], tuple[Alarm | None, list[float]]]] = {
    "nantrap, attempt": guarded("attempt"),
    "nantrap, two lines": guarded("twoline"),
    "anomaly mode": anomaly_mode,
    "isfinite hooks": hook_detector,
}


# ---- judgement


def right_place(alarm: Alarm, truth: dict[str, Any], method: str) -> bool:
    if method == "anomaly mode":
        named = alarm.node is not None and f"aten.{operation_of_node(alarm.node)}" == truth["op"]
        return named or (alarm.node is not None and truth["phase"] == "backward")
    if method == "isfinite hooks":
        return alarm.module == module_of(truth) and (alarm.phase == truth["phase"] or truth["phase"] == "state")
    return is_place(truth, alarm.phase, alarm.module, alarm.op, alarm.node)


def judge(tally: Tally, method: str, path: Path, step_seconds: float) -> None:
    case = load(path)
    truth = case["truth"]
    alarm, times = METHODS[method](case)
    if len(times) > 1 and step_seconds > 0:
        tally.overhead.append(statistics.median(times[1:]) / step_seconds)
    if is_control(truth):
        tally.controls += 1
        tally.false_alarms += alarm is not None
        return
    tally.bugs += 1
    if alarm is None:
        return
    tally.step += alarm.step == truth["first_bad_step"]
    tally.place += alarm.step == truth["first_bad_step"] and right_place(alarm, truth, method)
    extra = max(alarm.seconds - (statistics.median(times[1:] or times) if times else step_seconds), 0.0)
    tally.milliseconds.append(extra * 1e3)
    if step_seconds > 0:
        tally.steps.append(extra / step_seconds)


def measure(name: str) -> None:
    paths = find(name)
    tallies = {method: Tally() for method in METHODS}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path in paths:
            plain(load(path))  # warm
            _, times = plain(load(path))
            step_seconds = statistics.median(times[1:] or times)
            for method, tally in tallies.items():
                judge(tally, method, path, step_seconds)
    show(f"{name}: {len(paths)} programs", tallies)


def show(title: str, tallies: dict[str, Tally]) -> None:
    print(f"\n{title}")
    print(f"{'':22}{'step':>9}{'place':>9}{'false':>8}{'ms':>8}{'steps':>8}{'worst':>8}{'healthy':>9}")
    for method, tally in tallies.items():
        median = statistics.median(tally.milliseconds) if tally.milliseconds else 0.0
        steps = statistics.median(tally.steps) if tally.steps else 0.0
        healthy = statistics.median(tally.overhead) if tally.overhead else 0.0
        right_step, right = f"{tally.step}/{tally.bugs}", f"{tally.place}/{tally.bugs}"
        false = f"{tally.false_alarms}/{tally.controls}"
        worst = max(tally.steps, default=0.0)
        print(f"{method:22}{right_step:>9}{right:>9}{false:>8}{median:8.1f}{steps:8.1f}{worst:8.0f}{healthy:8.2f}x")


def large() -> None:
    """A transformer of a few million parameters, where fixed costs do not matter."""

    def build() -> Case:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(192, 6, 768, batch_first=True)
        model = nn.Sequential(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(192, 32))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        data = [(torch.randn(16, 64, 192), torch.zeros(16)) for _ in range(6)]
        data[5][1][3] = 1e3
        truth = {
            "cause": "exp_overflow", "first_bad_step": 5, "phase": "forward", "module": "loss", "op": "aten.exp",
        }  # fmt: skip

        def loss_fn(m: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            out = m(batch[0])
            return out.square().mean() + (out.mean(dim=(1, 2)) + batch[1]).exp().mean()

        return {"model": model, "optimizer": optimizer, "batches": data, "loss_fn": loss_fn, "steps": 6, "truth": truth}

    tallies = {method: Tally() for method in METHODS}
    _, times = plain(build())
    step_seconds = statistics.median(times[1:])
    for method, tally in tallies.items():
        alarm, taken = METHODS[method](build())
        tally.bugs = 1
        tally.overhead.append(statistics.median(taken[1:]) / step_seconds)
        if alarm is not None:
            tally.step += alarm.step == 5
            tally.place += right_place(alarm, build()["truth"], method)
            extra = max(alarm.seconds - statistics.median(taken[1:]), 0.0)
            tally.milliseconds.append(extra * 1e3)
            tally.steps.append(extra / step_seconds)
    show(f"a transformer, {step_seconds * 1e3:.0f} ms per step", tallies)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="families, collections or programs")
    parser.add_argument("--large", action="store_true", help="also a transformer of a few million parameters")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.names or ("everyday_failures", "held_back"):
        measure(name)
    if arguments.large:
        large()


if __name__ == "__main__":
    main()
