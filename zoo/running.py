"""What a tool is, and the run of one program that is handed to it. Nothing here knows nantrap.

A tool trains the program in its own way and says what it notices:

    class Tool:
        name = "my_tool"
        about = "one line for the tables"
        stops = True                       # the training ends at the first alarm

        def train(self, run: Run) -> None:
            case = run.build()
            for batch in run.batches():
                loss = run.loss(batch)
                loss.backward()
                if not loss.isfinite():
                    run.alarm(Alarm(phase="forward"))
                    return
                case["optimizer"].step()
                case["optimizer"].zero_grad()

    TOOLS = (Tool(),)

A tool that runs whole scripts has `run_script` as well, which is handed a `ScriptRun`.
"""

from __future__ import annotations

import math
import random
import runpy
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from zoo.loading import Case, batches, load, loss_function, truth_of_script


@dataclass(frozen=True, slots=True)
class NamedCause:
    """A cause that a tool names, as a slug of `nantrap explain`, and whether it claims a proof and a tried repair."""

    slug: str
    proven: bool = False
    verified: bool = False


@dataclass(frozen=True, slots=True)
class Alarm:
    """What a tool says of a failure. What it does not name stays empty, and is not held against it.

    `step` is the current one unless it is given. `module` is a qualified name, or `loss` for code outside the model.
    `op` is an aten name without overload, `node` an autograd node such as `LogBackward0`. `line` is the text of the
    source line. `sentences` are claims that a program's truth may list as false.
    """

    step: int | None = None
    phase: str | None = None
    module: str | None = None
    op: str | None = None
    node: str | None = None
    line: str | None = None
    causes: tuple[NamedCause, ...] = ()
    sentences: tuple[str, ...] = ()


class Tool(Protocol):
    """What is measured. `packages` are distributions whose versions are recorded, `preload` modules imported early."""

    name: str
    about: str
    stops: bool

    def train(self, run: Run) -> None:
        """Train `run.build()` on every batch of `run.batches()`, and report to `run.alarm`."""


class Run:
    """One program, built once, its batches counted and timed, and the alarms that were raised.

    With `to_the_end=False` the batches end after the first alarm.
    """

    def __init__(
        self,
        path: Path,
        *,
        to_the_end: bool = True,
        build: Callable[[], Case] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.path = path
        self.to_the_end = to_the_end
        self.begins: list[float] = []
        self.alarms: list[tuple[int, Alarm]] = []
        self.told: list[float] = []
        self.bad_at_first = False
        self.ended = 0.0
        self.clock = clock
        self._build = build or (lambda: load(path))
        self._case: Case | None = None

    def build(self) -> Case:
        """The program; built at the first call, with every random stream at its start."""
        if self._case is None:
            torch.manual_seed(0)
            random.seed(0)
            self._case = self._build()
            self.bad_at_first = not state_is_finite(self._case)
        return self._case

    def truth(self) -> dict[str, Any]:
        """The answer."""
        truth: dict[str, Any] = self.build()["truth"]
        return truth

    def is_whole(self) -> bool:
        """Whether every step was begun."""
        return len(self.begins) == self.build()["steps"]

    def is_finite(self) -> bool:
        """Whether the model and the optimizer's state hold finite values only, or did not from the beginning."""
        return self.bad_at_first or state_is_finite(self.build())

    def batches(self) -> Batches:
        """The batches of the program, one for each step; a step lasts until the next one is asked for."""
        return Batches(self)

    def loss(self, batch: Any) -> Tensor:
        """The loss of a batch under the program's autocast; the sum if the program returns several."""
        found: Any = loss_function(self.build())(batch)
        loss: Tensor = sum(found.values()) if isinstance(found, dict) else found  # type: ignore[assignment]
        return loss

    def alarm(self, alarm: Alarm) -> None:
        """Note what the tool says, for the current step unless the alarm names one."""
        self.alarms.append((len(self.begins) - 1 if alarm.step is None else alarm.step, alarm))
        self.told.append(self.clock())

    def step_seconds(self) -> list[float]:
        """How long each step took."""
        ends = [*self.begins[1:], self.ended]
        return [end - begin for begin, end in zip(self.begins, ends, strict=False)]

    def seconds_to_answer(self, failed: int) -> float:
        """From the begin of the step that failed to the first alarm; to the end of its step if it was read later."""
        step, alarm = self.alarms[0]
        if not 0 <= failed < len(self.begins):
            return math.nan
        late = alarm.step is not None and step + 1 < len(self.begins)
        told = self.begins[step + 1] if late else min(self.told[0], self.ended)
        return told - self.begins[failed]


class Batches:
    """The batches of a run, with their number, so that a loader does not fetch ahead."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def __len__(self) -> int:
        return int(self._run.build()["steps"])

    def __iter__(self) -> Iterator[Any]:
        run = self._run
        source = batches(run.build())
        for _ in range(len(self)):
            if run.alarms and not run.to_the_end:
                break
            begin = run.clock()
            try:
                batch = next(source)
            except StopIteration:
                break
            run.begins.append(begin)
            run.ended = math.inf
            yield batch
            run.ended = run.clock()
        run.ended = run.clock()


class ScriptRun:
    """One whole script, the alarms that were raised, and the optimizers that made updates.

    A step of a script is an update that any of its optimizers makes, counted from 0.
    """

    to_the_end = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.script = path / "train.py"
        self.alarms: list[tuple[int, Alarm]] = []
        self.updates = 0
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        self._ended = False

    def truth(self) -> dict[str, Any]:
        """The answer."""
        return truth_of_script(self.path)

    def is_whole(self) -> bool:
        """Whether the script came to its end."""
        return self._ended

    def is_finite(self) -> bool:
        """Whether what the optimizers hold is finite, weights and state; buffers of a model are not seen."""
        found = self._optimizers.values()
        weights = [weight for each in found for group in each.param_groups for weight in group["params"]]
        return _are_finite([*weights, *(value for each in found for value in _state_of(each))])

    def run(self, start: Callable[[str], object] | None = None) -> None:
        """Run the script as `python train.py` does, or let a tool start it."""
        script = str(self.script)
        start = start or (lambda script: runpy.run_path(script, run_name="__main__"))
        watching = register_optimizer_step_post_hook(self._updated)
        sys.argv[:] = [script]
        sys.path.insert(0, str(self.path))
        try:
            start(script)
            self._ended = True
        except SystemExit as end:
            self._ended = not end.code
        finally:
            watching.remove()
            sys.path.remove(str(self.path))

    def _updated(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._optimizers[id(optimizer)] = optimizer
        self.updates += 1

    def alarm(self, alarm: Alarm) -> None:
        """Note what the tool says, for the current step unless the alarm names one."""
        self.alarms.append((self.updates if alarm.step is None else alarm.step, alarm))


def state_is_finite(case: Case) -> bool:
    """Whether the model and the optimizer's state hold finite values only."""
    return _are_finite([*case["model"].parameters(), *case["model"].buffers(), *_state_of(case["optimizer"])])


def _state_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    return [value for entry in optimizer.state.values() for value in entry.values()]


def _are_finite(values: list[Any]) -> bool:
    floats = [t for t in values if isinstance(t, Tensor) and t.is_floating_point()]
    return all(bool(t.isfinite().all()) for t in floats)
