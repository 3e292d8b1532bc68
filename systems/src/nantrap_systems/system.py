"""What a system is, what a fault is, and what a training run holds.

Evaluation  how good the model is, in two numbers
Run         everything a training loop needs, built from settings and a seed
Remedy      what people did about a fault, as code
Fault       one way in which the real project failed, as code
System      a training project: its settings, how it is built, its faults

A fault never edits the system's files: it passes other parts to `build` (an attention that adds its mask instead of
the safe one) and other settings (half precision). The repaired system is the one without a fault, so `clean` and
`plain` differ in exactly the parts the fault names, and start from the same weights.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from nantrap.errors import MissingExtraError, UsageError
from nantrap_systems.settings import read_settings, with_changes

if TYPE_CHECKING:
    from nantrap.guard.watching.watch import WatchSpec

Terms = Tensor | Mapping[str, Tensor]
"""A loss: a scalar, or named terms whose sum is the loss."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How good the model is on held-out data: a loss, and a figure between 0 and 1 that means something."""

    loss: float
    quality: float


@dataclass(slots=True, kw_only=True)
class Run:
    """Everything a training loop holds. `window`, `update` and `begin_epoch` are what a fault may replace.

    Attributes:
        model: the model, in training mode.
        optimizer: of all its parameters.
        loss: the loss of one micro-batch.
        window: the micro-batches of a step, by the step's number alone, so that a run can resume anywhere.
        evaluate: how good the model is now. Leaves the random stream alone.
        update: from gradients to new weights; whether they moved.
        scheduler: stepped with every update.
        scaler: for float16.
        ema: averaged weights, as `nantrap.Guard` takes them.
        watch: names of values to follow, as `nantrap.Guard` takes them.
        max_grad_norm: clip to this norm; `None` does not clip.
        begin_epoch: called every `epoch_steps` steps.
        step: the step that the loop is in.
        epoch_steps: how many steps an epoch has.
        steps: how many steps the settings say that the run has; its schedule spans them.
        policy: settings of the guard's policy that differ from its own.
        evaluate_ema: the same as `evaluate`, of the averaged weights.
        watched: values worth following, by name, for the training log.
        describe: a line about them after each epoch.
        process_group: the processes that average gradients, where the model does not show it, for `nantrap.Guard`.
        facts: what the script prints before it trains, such as a check of the data.
        notes: what nantrap said while the run was made, of a resume for example.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[Any], Terms]
    window: Callable[[int], tuple[Any, ...]]
    evaluate: Callable[[], Evaluation]
    update: Callable[[Run], bool]
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None
    scaler: torch.amp.GradScaler | None = None
    ema: Any = None
    watch: WatchSpec = ()
    max_grad_norm: float | None = 1.0
    begin_epoch: Callable[[Run], None] | None = None
    epoch_steps: int = 100
    steps: int = 0
    step: int = 0
    policy: Mapping[str, Any] = field(default_factory=dict)
    evaluate_ema: Callable[[], Evaluation] | None = None
    watched: Callable[[], Mapping[str, float]] | None = None
    describe: Callable[[], str] | None = None
    process_group: Any = None
    facts: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What people did about a fault.

    Attributes:
        name: as the table shows it.
        story: what it does and what it was hoped to do.
        result: what it really does.
        holds: whether the run is sound with it.
        parts: what it replaces, on top of the fault's.
        settings: what it sets, on top of the fault's.
    """

    name: str
    story: str
    result: str
    holds: bool = False
    parts: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


def lower_rate_and_clip(
    settings: Mapping[str, Any],
    *,
    story: str = "A tenth of the learning rate and a tenth of the norm.",
    result: str = "Touches nothing of the fault.",
) -> Remedy:
    """What is usually tried first; the settings that do it are the system's own."""
    return Remedy(name="lower lr and clip", story=story, result=result, settings=settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way in which the real project failed.

    Attributes:
        name: as on the command line.
        title: what is wrong, in one line.
        story: how it came about, in a few sentences.
        damage: what the plain run looks like.
        answer: what nantrap does about it.
        parts: what it replaces, by the names of the system's `Parts`.
        settings: what it sets, by dotted names; the clean run is made with them too.
        faulty_settings: what it sets in the faulty run alone.
        remedies: what was tried.
        cause: the slug the guard must name first; `None` if the guard prevents the fault or cannot see it.
        module: where it must say that the fault began, as a pattern.
        op: the operation it must name.
        reported_by: for a fault without a cause, what reports it instead: "guard" if the guard prevents it or gives a
            clear error, "summary" of `nantrap run`, "resume check", "doctor" or "data check", or `None`: it is not
            diagnosed.
        code: of the check that reports it, before training: `nantrap doctor` of the system's folder, or `nantrap data`
            of its batches.
        notice: a pattern that must be among the notes of the guarded run.
        error: a pattern of the error with which the guarded run ends; `None`: it ends without one.
        loop: whether the loop itself is the fault. The guarded run is then this loop under `nantrap run`: a guard's own
            step would be another loop, without the fault.
        policy: settings of the guard's policy for this fault.
        processes: how many train together; then every run is made in a group of real processes.
        extra: the optional part of nantrap that it needs, which has the name of its package.
        gone_from: the first torch with which it does not happen any more.
        gone_because: what that torch does differently.
    """

    name: str
    title: str
    story: str
    damage: str
    answer: str
    parts: Mapping[str, Any]
    settings: Mapping[str, Any] = field(default_factory=dict)
    faulty_settings: Mapping[str, Any] = field(default_factory=dict)
    remedies: tuple[Remedy, ...] = ()
    cause: str | None = None
    module: str | None = None
    op: str | None = None
    reported_by: str | None = None
    code: str | None = None
    notice: str | None = None
    error: str | None = None
    loop: bool = False
    policy: Mapping[str, Any] = field(default_factory=dict)
    processes: int = 1
    extra: str | None = None
    gone_from: tuple[int, int] | None = None
    gone_because: str = ""

    def check_possible(self) -> None:
        """Raise `MissingExtraError` if what the fault needs is not installed, `UsageError` if this torch has it not."""
        if self.extra is not None and importlib.util.find_spec(self.extra) is None:
            raise MissingExtraError(self.extra, extra=self.extra)
        if self.gone_from is not None and tuple(map(int, torch.__version__.split(".")[:2])) >= self.gone_from:
            raise UsageError(f"{self.name} does not happen with torch {torch.__version__}: {self.gone_because}")


class Flag(NamedTuple):
    """A flag of a system's `train.py`: what it sets, and whether it takes no value."""

    name: str
    setting: str
    help: str
    switch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A training project: its settings, how it is built, its faults.

    Attributes:
        name: as on the command line.
        title: what it trains, in one line.
        quality: what the figure of `Evaluation.quality` is.
        settings: the class of its settings, a frozen dataclass.
        config: its config file.
        build: makes a run from settings, replaced parts and a seed.
        faults: its faults, the most telling one first.
        lr_setting: the setting that is the learning rate.
        length_setting: the setting that is the number of steps of a run; its schedule spans them.
        flags: flags of its `train.py` in addition to the common ones.
    """

    name: str
    title: str
    quality: str
    settings: type[Any]
    config: Path
    build: Callable[[Any, Mapping[str, Any], int], Run]
    faults: tuple[Fault, ...]
    lr_setting: str
    length_setting: str
    flags: tuple[Flag, ...] = ()

    def fault(self, name: str) -> Fault:
        """The fault of this name."""
        for fault in self.faults:
            if fault.name == name:
                return fault
        raise UsageError(f"{self.name} has no fault {name!r}; it has {', '.join(each.name for each in self.faults)}")

    def settings_of(
        self,
        fault: Fault | None = None,
        remedy: Remedy | None = None,
        *,
        repaired: bool = False,
        config: Path | None = None,
        changes: Mapping[str, Any] | None = None,
        steps: int = 0,
    ) -> Any:
        """The settings of a run: the config's, `steps`, then the fault's, then `changes`, then the remedy's."""
        length = {self.length_setting: steps} if steps else {}
        of_fault = {**fault.settings, **({} if repaired else fault.faulty_settings)} if fault else {}
        given = (length, of_fault, changes or {}, remedy.settings if remedy else {})
        wanted = {name: value for each in given for name, value in each.items()}
        return with_changes(read_settings(self.settings, config or self.config), wanted)

    def run(
        self,
        *,
        fault: Fault | None = None,
        remedy: Remedy | None = None,
        repaired: bool = False,
        config: Path | None = None,
        changes: Mapping[str, Any] | None = None,
        steps: int = 0,
        seed: int = 8,
    ) -> Run:
        """A run from a seed, with the settings of `settings_of`.

        Args:
            fault: switched on, unless `repaired`: then only its settings are taken.
            remedy: on top of the fault.
            repaired: build the repaired system under the fault's settings.
            config: instead of the system's own file.
            changes: settings by dotted name.
            steps: the length of the run, which its schedule spans, in the place of the configured one.
            seed: of weights, batches and noise.
        """
        if fault is not None:
            fault.check_possible()
        settings = self.settings_of(fault, remedy, repaired=repaired, config=config, changes=changes, steps=steps)
        parts: dict[str, Any] = {}
        if fault is not None and not repaired:
            parts = {**fault.parts, **(remedy.parts if remedy else {})}
        run = self.build(settings, parts, seed)
        run.policy = fault.policy if fault is not None else {}
        run.steps = settings.length.steps
        return run

    def first_step(self) -> dict[str, Any]:
        """The parts of the first step, as `nantrap preflight` takes them."""
        run = self.run()
        return {"model": run.model, "optimizer": run.optimizer, "batch": run.window(0)[0], "loss": run.loss}
