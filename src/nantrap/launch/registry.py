"""The loops of a script: one guard for each optimizer, made when the optimizer's model is first called.

Until then the calls of all modules are watched (`module_calls`).
"""

from __future__ import annotations

import fnmatch
import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from nantrap import finite
from nantrap.checkpoints.store.resume import steps_made
from nantrap.errors import NantrapError
from nantrap.guard.evaluations import Evaluations
from nantrap.guard.guard import is_guarded
from nantrap.guard.late import LateSteps
from nantrap.guard.progress import Tally
from nantrap.guard.ranks.ranks import is_sharded, replicas_in, several_ranks
from nantrap.guard.script_events import EventTable
from nantrap.guard.session import Session, Setup
from nantrap.guard.state.protected import Protected
from nantrap.guard.torch_private import inner_schedulers
from nantrap.guard.watching.sample_list import as_sample_list
from nantrap.guard.watching.watch import Limit
from nantrap.incident.wording import escaped, some_of
from nantrap.launch.event_detector import note_cleaned
from nantrap.launch.loaders import Batches
from nantrap.launch.position import ScriptNeighbours
from nantrap.launch.replicas import Comparison, Replicas
from nantrap.launch.roots import ModuleCalls, ModuleGroup, find_root, innermost, owns_some
from nantrap.launch.script_loop import ScriptDriver, ScriptLoop
from nantrap.launch.settings import RunSettings
from nantrap.launch.shared import Shared
from nantrap.launch.started import Reports
from nantrap.launch.without_optimizer import Inference, LooseValues, make_loose_loop, session_without_optimizer
from nantrap.locate import unwrap
from nantrap.locate.failure import active_replays
from nantrap.locate.nodes import leaves_below, leaves_of, nodes_below
from nantrap.locate.torch_private import version_of
from nantrap.report import write_line

_MANY = 16
_MUCH = 256 * 2**20
"""So many guards, or so many bytes of older states, and it is looked whether the script still has all of the optimizers
when it makes another one. A look takes 60 ms."""


@dataclass(slots=True)
class OptimizerEntry:
    """What is known of an optimizer.

    Attributes:
        optimizer: weakly, so that one the script drops is dropped here too.
        configured: the learning rates it was made with.
        loop: its guard, once its model is known; `None` before, and permanently if it cannot be guarded.
        unguarded_because: why it cannot be guarded.
        resumed: a state was loaded since it was made, and not checked yet.
        restored: the learning rates that the state brought, as the objects that were then in the parameter groups.
        schedulers: the schedules that change its learning rates.
    """

    optimizer: weakref.ref[Optimizer]
    configured: tuple[float, ...]
    loop: ScriptLoop | None = None
    unguarded_because: str = ""
    resumed: bool = False
    restored: tuple[Any, ...] = ()
    schedulers: list[weakref.ref[Any]] = field(default_factory=list)

    def sets_its_rate(self, optimizer: Optimizer) -> bool:
        """Whether the script itself has set each learning rate since a state was loaded, also to the same number."""
        groups = optimizer.param_groups
        if self.schedulers or len(groups) != len(self.restored):
            return False
        return all(group["lr"] is not rate for group, rate in zip(groups, self.restored, strict=True))

    def schedules(self) -> list[Any]:
        """The schedules that are alive and are not a part of another one (`SequentialLR`)."""
        living = [schedule for ref in self.schedulers if (schedule := ref()) is not None]
        inner = {id(part) for schedule in living for part in inner_schedulers(schedule)}
        return [schedule for schedule in living if id(schedule) not in inner]


@dataclass(frozen=True, slots=True)
class EndedLoop:
    """What the summary needs of a guard whose optimizer the script has dropped.

    Attributes:
        tally: its steps.
        label: of which optimizer its lines speak.
        bad: the names of what was not finite at the end.
        notes: what else was found.
    """

    tally: Tally
    label: str
    bad: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Beside:
    """A module that is called beside the models, and its buffers as they were before its first call."""

    module: weakref.ref[nn.Module]
    earlier: dict[str, Tensor]


class StepEngine(Protocol):
    """An engine that makes the step of an optimizer itself."""

    @property
    def root(self) -> nn.Module:
        """The module that it trains."""

    def setup(self, setup: Setup) -> Setup:
        """How its model is guarded, from how a script's own would be."""

    def driver(self, session: Session) -> ScriptDriver | None:
        """What makes the step; `None` if it is the optimizer itself."""


class OptimizerRegistry:
    """All optimizers of a script, and their guards.

    Args:
        settings: of the run.
        batches: what the data loaders gave.
    """

    def __init__(self, settings: RunSettings, batches: Batches) -> None:
        self.settings = settings
        self.batches = batches
        self.shared = Shared(batches)
        self.asked = self.shared.asked
        self.activity = self.shared.activity
        self.events = EventTable(self.say)
        """What the script did with data that all optimizers share."""
        batches.before_next = self.next_batch
        self.run_dir: Path | None = None
        self.earlier_incidents: frozenset[Path] = frozenset()
        """The incidents of earlier runs in the same folder."""
        self.has_children = False
        self.unguarded: list[str] = []
        """Optimizers that could not be guarded, and why."""
        self.started_processes = 0
        """How many new interpreters the script started by `multiprocessing`."""
        self.reports = Reports()
        """What they, and others that guard themselves, told about their training."""
        self.reports_to = ""
        """The reports of the process that started this one; empty if none did."""
        self._children_dir = ""
        self.own_guards = 0
        """How many optimizers the script guards itself."""
        self.loaded_bad: list[tuple[weakref.ref[Tensor], int]] = []
        """What was not finite when a state was loaded into a module, each with the count of its writes by then."""
        self.notes: list[Callable[[], list[str]]] = []
        """What gives further lines of the summary."""
        self.known: dict[int, OptimizerEntry] = {}
        """Every optimizer by its id."""
        self.guards: list[ScriptLoop] = []
        """Every guard whose optimizer the script may still use, in the order they were made."""
        self.ended: list[EndedLoop] = []
        """The others: a sweep over hundreds of models holds no more than it needs."""
        self._many = _MANY
        self.loose_values = LooseValues(self._make_loose, self.activity, self.say)
        """Values that are not finite in a script without an optimizer."""
        self.shared.diagnosed.steps = lambda: sum(loop.tally.attempted for loop in self.guards)
        self.replicas = Replicas(self.say, self.is_own_call)
        self.inference = Inference(self._make_inference, self.activity, lambda: bool(self.known))
        """Models that no optimizer trains."""
        self.module_calls = ModuleCalls(
            called=self._called,
            called_from_outside=self._called_from_outside,
            called_apart=self._called_apart,
            is_own_call=self.is_own_call,
        )
        self._beside: dict[int, _Beside] = {}
        self._inherited = 0
        """How many guards this process has from the one that it was forked from."""

    def begin_in_child(self) -> None:
        """This process was forked. The guards it has hold on, but they record nothing: the parent does. New ones get
        a folder of their own."""
        self._inherited = len(self.guards)
        for loop in self.guards:
            loop.session.recorder.abandon()
        self.reports_to, self.reports, self.started_processes = self.reports.path, Reports(), 0
        run_dir = (self._children_dir or self.settings.run_dir) if self.run_dir is None else str(self.run_dir)
        self.run_dir, self.earlier_incidents, self.has_children = None, frozenset(), False
        self.settings = replace(self.settings, run_dir=run_dir, forked=os.getpid(), json=False)

    def folder_of_children(self) -> str:
        """The folder below which the processes that this one starts write theirs."""
        if self.run_dir is None and not self._children_dir:
            self._children_dir = str(self.settings.choose_run_dir())
        return self._children_dir if self.run_dir is None else str(self.run_dir)

    def say(self, text: str, *more: str) -> None:
        """Print a line, and more if there are, unless the run is quiet. A name in it can forge no other line."""
        if not self.settings.quiet:
            write_line("\n".join(escaped(line, most=4000) for line in (f"nantrap: {text}", *more)))

    # ---- which optimizers there are

    def __iter__(self) -> Iterator[ScriptLoop]:
        """Every guard of this process, in the order they were made."""
        return iter(self.guards[self._inherited :])

    def entry(self, optimizer: Optimizer) -> OptimizerEntry | None:
        """What is known of an optimizer; `None` if the script made its own guard for it."""
        known = self.known.get(id(optimizer))
        return known if known is not None and known.optimizer() is optimizer else None

    def entries(self) -> list[OptimizerEntry]:
        """Of every optimizer that is alive."""
        return [entry for entry in self.known.values() if entry.optimizer() is not None]

    def enter_living(self) -> None:
        """Every optimizer that was made before the guard was attached, as in a notebook."""
        optimizers = [thing for thing in gc.get_objects() if issubclass(type(thing), Optimizer)]
        for optimizer in optimizers:
            is_wrapper = innermost(optimizer) is not optimizer
            if hasattr(optimizer, "param_groups") and not is_wrapper and not self.entry(optimizer):
                self.enter(optimizer)

    def enter(self, optimizer: Optimizer) -> None:
        """A new optimizer: from here on modules are watched until its model is called."""
        self._end_dropped()
        rates = tuple(float(group["lr"]) for group in optimizer.param_groups if "lr" in group)
        self.known[id(optimizer)] = OptimizerEntry(weakref.ref(optimizer), rates)
        self.module_calls.watch()

    def _end_dropped(self) -> None:
        """Close the guards of optimizers that the script has dropped, each time that the guards have become many."""
        few = len(self.guards) < self._many and sum(loop.session.anchors.nbytes for loop in self.guards) < _MUCH
        if few or self._inherited or several_ranks():
            return
        idle = [loop for loop in self.guards if not loop.is_in_step and loop.stopped is None]
        dropped = _held_by_guards_alone([loop.optimizer for loop in idle])
        for loop in [loop for loop in idle if id(loop.optimizer) in dropped]:
            loop.leave()
            loop.end()
            label = loop.session.recorder.label
            self.ended.append(EndedLoop(loop.tally, label, tuple(loop.bad_state()), tuple(loop.notes())))
            loop.close()
            self.guards.remove(loop)
            del self.known[id(loop.optimizer)]
        self._many = max(_MANY, 2 * len(self.guards))

    def is_own_call(self) -> bool:
        """Whether the guard itself is running now: a replay, a diagnosis, an update."""
        return self.activity.busy or bool(active_replays)

    def replays(self) -> bool:
        """Whether a diagnosis runs a step again."""
        return bool(active_replays)

    def exempt_patterns(self) -> tuple[str, ...]:
        """Patterns of the names of values that were non-finite from the start, and may be saved so."""
        return tuple(f"*{name}" for loop in self for name in loop.session.protected.ledger.exempt_names())

    def reduces(self) -> None:
        """The script calls `all_reduce`. Between a backward pass and its step it averages gradients by hand."""
        for loop in self.guards:
            if loop.comparison is not None and loop.is_in_step:
                loop.comparison.averaged_by_hand = True

    def group_ends(self) -> None:
        """A group of ranks ends: what they hold is compared while they can still be asked."""
        for loop in self.guards:
            if loop.comparison is not None:
                loop.comparison.end()

    def launched(self) -> LateSteps | None:
        """What makes the step that was launched and not read yet; `None` if there is none."""
        return next((loop.late for loop in self.guards if loop.late is not None and loop.late.is_waiting), None)

    def loop_of(self, optimizer: Optimizer) -> ScriptLoop | None:
        """The guard of an optimizer, made now if it was not made yet."""
        entry = self.entry(optimizer)
        if entry is None or is_guarded(optimizer):
            return None
        if entry.loop is None and not entry.unguarded_because:
            self._make(entry, called=None)
        return entry.loop

    def notice_backward(self, loss: Tensor) -> None:
        """A backward pass begins: an optimizer whose tensors belong to no module is guarded from here on.

        Without any optimizer the script updates its tensors by hand: they are checked at the end.
        """
        if self.known and not self.module_calls.watched:
            return  # every optimizer has its guard
        waiting = [entry for entry in self.entries() if entry.loop is None and not entry.unguarded_because]
        if not waiting and self.known:
            return
        if not self.known:
            self.loose_values.note_backward(loss)
            return
        reached = {id(leaf) for leaf in leaves_below(loss)}
        for entry in waiting:
            optimizer = entry.optimizer()
            if optimizer is not None and any(id(each) in reached for each in _parameters(optimizer)):
                self._make(entry, called=None)

    def look(self, tensor: Tensor) -> None:
        """The script asks about a value with a graph before any model was called: is it the loss of plain tensors?"""
        if not self.known:
            self.loose_values.look(tensor)
        elif not self.guards and tensor.grad_fn is not None:
            self.notice_backward(tensor)
            if self.guards and self.asked.open:
                self.asked.note(tensor)

    def loops_below(self, loss: Tensor) -> list[ScriptLoop]:
        """The guards whose parameters a loss reaches; with one optimizer there is nothing to look for."""
        if len(self.guards) <= 1:
            return self.guards
        nodes = nodes_below(loss)
        reached = {id(leaf) for leaf in leaves_of(nodes)}
        found = [loop for loop in self.guards if any(id(p) in reached for p in loop.parameters)]
        # the graph of a sharded model ends in the gathered weights, which no optimizer knows
        others = [loop for loop in self.guards if not found or loop.is_sharded]
        return found + [loop for loop in others if loop not in found and loop.made_any_of(nodes)]

    def loop_owning(self, parameters: Iterable[Tensor]) -> ScriptLoop | None:
        """The guard of which these are all the parameters that have a gradient, at least."""
        given = set(map(id, parameters))
        for loop in self.guards:
            found = False
            for parameter in loop.parameters:
                if parameter.grad is not None:
                    found = id(parameter) in given
                    if not found:
                        break
            if found:
                return loop
        return None

    # ---- what the script handles itself

    def record_abandoned(self) -> None:
        """The script begins something else (an evaluation, a save, its end): a step that it abandoned is recorded
        now."""
        for loop in self.guards:
            loop.leave()

    def end(self) -> None:
        """The script has ended: what it abandoned is recorded, and no step follows."""
        for loop in self.guards:
            loop.session.armed.end()
            loop.settle(at_end=True)
        self.record_abandoned()
        for loop in self.guards:
            loop.end()

    def note_end(self, error: BaseException) -> None:
        """An exception ended the script: the journals say so."""
        for loop in self.guards:
            loop.session.recorder.ended_by = type(error).__name__

    def let_go(self) -> None:
        """Hold nothing of the script any more. A group of ranks ends with the last model that belongs to it; if that
        happens only when Python itself ends, gloo can abort the process."""
        self.known.clear()
        self.guards.clear()
        self.loose_values.leaves.clear()
        gc.collect()

    def test_gradient(self, tensor: Tensor) -> bool:
        """The script tests a tensor: is it a gradient of a step that is being made?"""
        return any(loop.detector.tests_gradient(tensor) for loop in self.guards if loop.collector.window is not None)

    def next_batch(self) -> None:
        """A loader is about to give its next batch: one that the script tested and did not use was left out."""
        if self.asked.tensors:
            for loop in self.guards:
                loop.note_position()
        data, self.asked.data = self.asked.data, None
        if data is not None and self.guards and not self.is_own_call():
            self.guards[0].detector.record_batch(data)

    def clean(self, tensor: Tensor) -> None:
        """The script passes data through `nan_to_num`. If they are not finite, that is counted, and reported once."""
        samples = note_cleaned(tensor, self.batches, self.events)
        if samples:
            for loop in self.guards:
                loop.session.progress.cleaned += samples

    # ---- finding the models

    def close(self) -> None:
        """No module is watched any more, and every guard is closed."""
        self.module_calls.unwatch(at_end=True)
        self._beside.clear()
        self.inference.close()
        for loop in self.guards:
            loop.close()
        self.loose_values.close()
        self.reports.close()

    def owns(self, module: nn.Module) -> bool:
        """Whether a module belongs to a model that has a guard, which watches it."""
        return self._guarded_by(module) is not None

    def _guarded_by(self, module: nn.Module) -> ScriptLoop | None:
        return next((loop for loop in self.guards if any(each is module for each in loop.model.modules())), None)

    def evaluates(self, module: nn.Module, call: Callable[[], Any]) -> Any:
        """The script puts a module into eval mode. Returns what the call gives."""
        result = self.inference.evaluates(module, call, self.owns)
        if self.inference.looks_for_parts:
            self.module_calls.watch()
        return result

    @property
    def evaluations(self) -> list[Evaluations]:
        """What watches the calls of models without gradients."""
        return [*(loop.collector.evaluations for loop in self.guards), self.inference.evaluations]

    def without_gradients(self, function: Callable[..., Any], call: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        """The script calls a function that switches gradients off. Returns what it gives.

        Args:
            function: the function itself.
            call: PyTorch's own call of it.
            args: of the function.
            kwargs: of the function.
        """
        watching = self.evaluations
        if self.activity.busy or active_replays or any(each.is_running for each in watching):
            return call()
        before = [each.calls for each in watching]
        around = watching[0].around(function, args, kwargs)
        result, raised = None, True
        try:
            result = call()
            raised = False
        finally:
            for each, calls in zip(watching, before, strict=True):
                if around is not None and each.calls > calls:
                    each.end_around(around, result, calls=each.calls - calls, raised=raised)
        return result

    def end_block(self) -> None:
        """The script has left a block without gradients."""
        if not (self.activity.busy or active_replays):
            for each in self.evaluations:
                each.end_block()

    def _called_apart(self, module: nn.Module) -> None:
        """The script calls a module: one that no optimizer trains is watched by itself."""
        self.inference.called(module, self._guarded_by)
        if self.inference.settled and not self.known:
            self.module_calls.unwatch()

    def _called(self, module: nn.Module) -> None:
        """A module is called with gradients: an optimizer that waits for its model gets a guard if this is it."""
        if not self.known:
            return
        waiting = [each for each in self.entries() if each.loop is None and not each.unguarded_because]
        for entry in waiting:
            optimizer = entry.optimizer()
            if optimizer is not None and owns_some(module, _parameters(optimizer)):
                self._make(entry, called=module)
        # the first step of each shows which modules take part
        found = all(
            each.unguarded_because or (each.loop is not None and each.loop.tally.attempted) for each in self.entries()
        )
        if found and self.module_calls.unwatch():
            self._beside.clear()

    def _called_from_outside(self, module: nn.Module) -> None:
        """The script calls another module beside the model: a loss with buffers or a teacher is protected too.

        A teacher may be called before the model, so before there is a guard. Its buffers are copied until then. After
        the first step, a module that is called before the model may as well be an evaluation, and is left alone.
        """
        known = self._beside.get(id(module))
        if (known is not None and known.module() is module) or next(module.buffers(), None) is None:
            return
        copies = {name: finite.copy_of(buffer) for name, buffer in module.named_buffers()}
        earlier = {name: copy for name, copy in copies.items() if copy is not None}
        self._beside[id(module)] = _Beside(weakref.ref(module), earlier)
        for loop in self.guards:
            if (self.asked.open or not loop.tally.attempted) and not owns_some(module, loop.parameters):
                loop.protect(module)

    def guard_engine(self, optimizer: Optimizer, engine: StepEngine) -> ScriptLoop | None:
        """Guard an optimizer whose step is made by an engine; `None` if there is a reason against it."""
        if self.entry(optimizer) is None:
            self.enter(optimizer)
        entry = self.known[id(optimizer)]
        self._make(entry, called=None, engine=engine)
        return entry.loop

    def leave_alone(self, optimizer: Optimizer, because: str) -> None:
        """An optimizer is not guarded, and the summary says why."""
        if self.entry(optimizer) is None:
            self.enter(optimizer)
        self.known[id(optimizer)].unguarded_because = because
        self.unguarded.append(f"{type(optimizer).__name__}: {because}")
        self.say(f"{type(optimizer).__name__} is not guarded: {because}")

    def _make(self, entry: OptimizerEntry, *, called: nn.Module | None, engine: StepEngine | None = None) -> None:
        """Make the guard of an optimizer, or note why there is none. While its model is lazy, nothing happens yet."""
        optimizer = entry.optimizer()
        if optimizer is None or is_guarded(optimizer):
            entry.unguarded_because = "the script guards it itself"
            if optimizer is not None:
                self._leave_to_its_guard(optimizer)
            return
        root = find_root(_parameters(optimizer), called) if engine is None else engine.root
        if root is None:
            return  # its parameters have no values yet: tried again at the next call
        bare = called is not None and not replicas_in(called)
        if bare:
            self.replicas.watch()
        self.activity.busy = True
        try:
            entry.loop = self._make_loop(root, optimizer, entry, engine)
            self.guards.append(entry.loop)
            self.inference.leave((root, *root.modules()))
            self._tell_apart()
            if engine is None:
                self._compare_ranks(entry.loop, bare=bare)
            for each in self._beside.values():
                beside = each.module()
                if beside is not None and not owns_some(beside, entry.loop.parameters):
                    entry.loop.protect(beside, earlier=each.earlier)
            if entry.resumed:
                entry.loop.continue_at(steps_made(optimizer) or 0)
        except Exception as error:  # the script goes on as without a guard
            self.leave_alone(optimizer, str(error) or type(error).__name__)
        finally:
            self.activity.busy = False

    def _make_loop(
        self, root: nn.Module, optimizer: Optimizer, entry: OptimizerEntry, engine: StepEngine | None
    ) -> ScriptLoop:
        """The guard of an optimizer, made from the settings of the run."""
        settings, shared = self.settings, self.shared
        samples = as_sample_list(settings.bad_samples or None)
        setup = Setup(
            policy=settings.policy(),
            run_dir=self._folder(),
            quiet=settings.quiet,
            by="script",
            watch=_watch(root, settings, self.say),
            neighbours=ScriptNeighbours(shared.batches, shared.diagnosed, samples),
            export=settings.exporters,
            alerts=settings.alerts(),
            bad_samples=samples,
            max_grad_norm=settings.clip or None,
            save_every=_save_every(root, settings, self.say),
            schedules=entry.schedules,
        )
        session = Session(root, optimizer, setup if engine is None else engine.setup(setup))
        session.progress.loaded = self._loaded_bad(session.protected) or None
        return ScriptLoop(
            root,
            session,
            shared,
            max_grad_norm=settings.clip or None,
            checks_epochs=settings.check_state == "epoch",
            driver=None if engine is None else engine.driver(session),
        )

    def _loaded_bad(self, protected: Protected) -> frozenset[str]:
        """What was not finite when a state was loaded into the model, and was not written since, by name."""
        kept = {id(tensor): version for known, version in self.loaded_bad if (tensor := known()) is not None}
        named = (*protected.members.named(), *protected.root.named_buffers())
        return frozenset(name for name, tensor in named if kept.get(id(tensor)) == version_of(tensor))

    def _tell_apart(self) -> None:
        """With several optimizers each printed line says whose step it is: each counts its own steps from 0."""
        loops = list(self)
        first = len(self.ended) + 1
        for number, loop in enumerate(loops, first) if len(loops) > 1 or self.ended else ():
            if not loop.session.recorder.label:
                model = loop.model
                of = "" if isinstance(model, ModuleGroup) else f" of {type(unwrap(model)).__name__}"
                loop.session.recorder.label = f"optimizer {number} ({type(loop.optimizer).__name__}{of}): "

    def _leave_to_its_guard(self, optimizer: Optimizer) -> None:
        """The script made a `Guard` of its own: the options of the command line do not reach it."""
        self.own_guards += 1
        options = self.settings.options_of_a_guard()
        if options:
            self.say(
                f"the script guards its {type(optimizer).__name__} itself, so {', '.join(options)} "
                f"{'has' if len(options) == 1 else 'have'} no effect on it; give the same to its Guard"
            )

    def _compare_ranks(self, loop: ScriptLoop, *, bare: bool) -> None:
        """Where no wrapper of the model keeps the ranks equal, their weights are compared now and then.

        Args:
            loop: the guard of an optimizer.
            bare: the model was called, and not a wrapper around it.
        """
        ranks = loop.session.ranks
        if several_ranks() and (bare or not ranks.replicated) and not is_sharded(loop.model):
            loop.comparison = Comparison(
                len(self.guards),
                lambda: list(loop.session.protected.members.named()),
                replicas=self.replicas,
                say=self.say,
            )

    def _make_loose(self, leaves: list[Tensor]) -> ScriptLoop | None:
        """A guard over tensors that no optimizer owns; `None` if they are not known by any module or name."""
        leaves = [leaf for leaf in leaves if leaf.is_floating_point()]
        shared = Shared(self.batches, activity=self.activity)
        try:
            root = find_root(leaves) if leaves else None
            if root is None:
                return None
            return make_loose_loop(root, leaves, self.settings, shared=shared, run_dir=self._folder())
        except NantrapError as error:
            self.say(f"a value that is not finite cannot be diagnosed: {error}")
            return None

    def _make_inference(self, module: nn.Module, number: int) -> Session | None:
        """The session of a model that no optimizer trains; `None` if it cannot be guarded."""
        folder = self._folder()
        if self.guards or number > 1:
            folder = folder.parent if folder.name.startswith("optimizer-") else folder
            folder = folder / f"inference-{number}"
        try:
            leaves = [each for each in module.parameters() if each.is_floating_point()]
            session = session_without_optimizer(module, leaves, self.settings, shared=self.shared, run_dir=folder)
        except (NantrapError, ValueError) as error:
            self.say(f"{type(module).__name__} gave a value that is not finite, which cannot be diagnosed: {error}")
            return None
        if self.guards or number > 1:
            session.recorder.label = f"{type(unwrap(module)).__name__}: "
        return session

    def _folder(self) -> Path:
        if self.run_dir is None:
            self.run_dir = self.settings.choose_run_dir()
            self.earlier_incidents = frozenset(incident_folders(self.run_dir))
        number = len(self.ended) + len(self.guards) - self._inherited
        return self.run_dir if number == 0 else self.run_dir / f"optimizer-{number + 1}"


def incident_folders(run_dir: Path) -> list[Path]:
    """The folders of all incidents below the folder of a run, in the order of their names."""
    return [path.parent for path in sorted(run_dir.glob("**/incidents/*/incident.json"))]


def _held_by_guards_alone(optimizers: list[Optimizer]) -> set[int]:
    """The ids of the optimizers to which only objects of nantrap refer, directly or in a container of theirs."""
    found = [each for each in gc.get_referrers(*optimizers) if each is not optimizers]
    containers = [each for each in found if isinstance(each, (dict, list, tuple))]
    in_own = _own_references(gc.get_referrers(*containers), containers) if containers else {}
    # a container is in `found` and in `containers`, in the variable below and the argument of the count
    whole = [each for each in containers if sys.getrefcount(each) - 4 <= in_own.get(id(each), 0)]
    ours = _own_references([*found, *whole], optimizers, also=set(map(id, whole)))
    return {id(each) for each in optimizers if sys.getrefcount(each) - 3 <= ours.get(id(each), 0)}


def _own_references(referrers: Iterable[Any], to: Sequence[Any], *, also: Set[int] = frozenset()) -> dict[int, int]:
    """How often objects of nantrap, and the containers `also`, refer to each of some objects, by their id."""
    counts = dict.fromkeys(map(id, to), 0)
    for referrer in {id(each): each for each in referrers}.values():
        if _is_own(referrer) or id(referrer) in also:
            for each in gc.get_referents(referrer):
                if id(each) in counts:
                    counts[id(each)] += 1
    return counts


def _is_own(thing: Any) -> bool:
    return type(thing).__module__.startswith("nantrap.")


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _watch(root: nn.Module, settings: RunSettings, say: Callable[[str], None]) -> dict[str, Limit | None]:
    """What to follow in this model. A name may be meant for the model of another optimizer."""
    names = [name for name, _ in (*root.named_parameters(), *root.named_buffers())]
    found: dict[str, Limit | None] = {}
    for pattern, (least, largest) in settings.watches().items():
        if any(fnmatch.fnmatchcase(name, pattern) for name in names):
            found[pattern] = None if least is largest is None else Limit(min=least, max=largest)
        else:
            say(
                f"--watch {pattern}: no parameter or buffer of {type(root).__name__} has such a name; "
                f"names look like {some_of(names)}"
            )
    return found


def _save_every(root: nn.Module, settings: RunSettings, say: Callable[[str], None]) -> int:
    """How often to save. Of a sharded model each rank holds a part, and one rank alone cannot write the whole."""
    if settings.save_every and is_sharded(root):
        say(
            "--save-every does nothing for a sharded model: save it in the script with "
            "torch.distributed.checkpoint, which is guarded as well"
        )
        return 0
    return settings.save_every
