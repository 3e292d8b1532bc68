"""Everything a step may change: how it is restored, whether it is as before, what is bad in it.

Parameters and optimizer state change in the update, buffers in the forward pass, and so do parameters that a forward
pass writes itself (a codebook, a clamp). The update runs plainly where it is provably finite (`certify`); elsewhere it
is made carefully: copy, step, read, and undo if anything became non-finite.

Weights may lie in shared memory: several processes of a program train one model, each with its own guard (Hogwild).
What one process writes, the others read and train on. So a diagnosis, which runs the step again and changes one thing
or another, works on copies; the program's tensors have their shared memory again afterwards.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from nantrap import finite
from nantrap.guard.policy import Policy
from nantrap.guard.state.certify import LARGEST_NORM, Certificate, certify
from nantrap.guard.state.copies import UpdateSnapshot
from nantrap.guard.state.ledger import Ledger
from nantrap.guard.state.members import Members, Shards, name_beside, optimizer_tensors, reached_through_data
from nantrap.guard.torch_private import count_writes, local_parts, step_hooks_of, version_of
from nantrap.incident import Finding, Phase
from nantrap.locate import Program, ProgramState, finding, updated_elsewhere


class Protected:
    """The state of one model and one optimizer, and of whatever else takes part in their steps.

    State held: a copy of the buffers, at most one copy of parameters and optimizer state (made when first needed), and
    what proves that the state is finite. The state is *trusted* once it was read and found finite, until anything but
    the optimizer writes it: every tensor counts its writes, and their sum is compared before each step.

    Args:
        model: the model, wrapped or not.
        optimizer: its optimizer.
        policy: how careful to be.
        also: further modules with parameters or buffers that take part in the step.
        averages: the modules that hold averaged weights.
        scheduler: the scheduler that the guard steps, or `None`.
        owned_only: guard only what the optimizer owns.
        shards: where the optimizer moves shards in place of the model's parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        policy: Policy,
        also: Sequence[nn.Module] = (),
        averages: Sequence[nn.Module] = (),
        scheduler: Any = None,
        owned_only: bool = False,
        shards: Shards | None = None,
    ) -> None:
        self.members = Members(model, optimizer, also=also, owned_only=owned_only, shards=shards)
        self.root = self.members.root
        self.averages = list(averages)
        self.ledger = Ledger(
            self.root,
            self.members.also,
            parameters=self.members.named(),
            limit_bytes=policy.rollback.anchor_bytes,
            suspects=reached_through_data(self.modules),
        )
        """What a step may change apart from its update, and who writes it."""
        self.has_buffers = bool(self.ledger)
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.result: Any = None
        """What the last update returned."""
        self._policy = policy
        self._snapshot: UpdateSnapshot | None = None
        self._trusted: list[Tensor] = []
        self._trusted_state: object = None
        self._trusted_writes = -1
        self._certificate: Certificate | None = None
        self._steps_since_check = 0
        self._check_every = policy.sampling.state_every or float("inf")
        self.bad_before: dict[str, int] = {}
        """What was seen bad without taking part in a step, each with the first such step, by name."""
        self._bad_before: list[Finding] = []
        self._schedule_at_begin: Any = None
        self._sums: list[int] | None = None
        self._not_restored: list[str] = []
        self.program = Program(self.modules)
        """The generators and attributes of the program itself."""
        self._program_at_begin: ProgramState | None = None
        self._refused_in_a_row = 0

    @property
    def modules(self) -> list[nn.Module]:
        """Every module whose buffers belong to the state: the model, further ones, averages."""
        return [self.root, *(module for _, module in self.members.also), *self.averages]

    def add(self, module: nn.Module, *, earlier: Mapping[str, Tensor] | None = None) -> None:
        """One more module takes part in the step: its buffers are restored like the model's.

        Args:
            module: the module; it is called by its class, with a number if that name is taken.
            earlier: copies of its buffers before the step, by name, if it was called already.
        """
        name = name_beside(module, {name for name, _ in self.members.also})
        if self.ledger.add(name, module, earlier=earlier):
            self.members.also.append((name, module))
            self.has_buffers = True

    # ---- the beginning of a step

    def begin(self) -> None:
        """Before the first forward pass of a step: what is there now is what a refused step goes back to."""
        self.ledger.capture(begins=True)  # what was written since the last step was written by the script
        if self.scheduler is not None:
            self._schedule_at_begin = getattr(self.scheduler, "last_epoch", None)

    def note_program(self, *reachable: Any) -> ProgramState | None:
        """The program's own generators and attributes before a forward pass. A refused step goes back to the first.

        Not called while `program.rest` says that nothing of the kind is expected.

        Args:
            reachable: the function that computes the loss, and the batch, where they are known.
        """
        state = self.program.capture(*reachable)
        if state is not None and self._program_at_begin is None:
            self._program_at_begin = state
        return state

    def refresh(self) -> None:
        """Follow an optimizer that got more or other parameters since; what is new is not trusted yet."""
        self.members.refresh()
        suspects = reached_through_data(self.modules)
        self.ledger.refresh(self.root, self.members.also, self.members.named(), suspects)
        self.has_buffers = bool(self.ledger)
        self.program = Program(self.modules)
        self._trusted_writes = -1

    # ---- the update

    def needs_care(self, norm: float) -> bool:
        """Whether an update by gradients of this norm (after clipping) could create a non-finite value."""
        if self._policy.rollback.undo != "auto":
            return self._policy.rollback.undo == "always"
        optimizer = self.optimizer
        if (
            self._steps_since_check + 1 >= self._check_every
            or not norm <= LARGEST_NORM
            or self._trusted_state is not optimizer.state
            or self.ledger.writes_uncounted
            or sum(map(version_of, self._trusted)) != self._trusted_writes
        ):
            return True
        certificate = self._certificate
        if certificate is not None and step_hooks_of(optimizer) == ({}, {}):
            for group, limits in zip(optimizer.param_groups, certificate.groups, strict=False):
                rate = group["lr"]
                if rate.__class__ is not float or not 0.0 <= rate <= limits.largest_rate:
                    break
                if limits.constants_of(group) != limits.constants:
                    break
            else:
                if len(optimizer.param_groups) == len(certificate.groups):
                    return False
        self._certificate = certify(optimizer)
        return self._certificate is None

    def update(self, step: Callable[[], Any], *, careful: bool) -> list[Finding]:
        """Run `step()`. Returns what it made non-finite, in which case everything is as before; else nothing.

        What was bad before the step and takes no part in it (a frozen parameter that is not used) was not caused by the
        step; it is left alone, and `newly_bad_before` names it once.
        """
        self._steps_since_check += 1
        self._refused_in_a_row = 0
        if not careful:
            self.result = step()
            self._trusted_writes = sum(map(version_of, self._trusted))
            return []
        self.ledger.learn()
        copied = self.copy_for_update()
        self.result = step()
        self._steps_since_check = 0
        # a hook of the optimizer may write buffers (averaged weights); those of the forward pass were judged before
        # or parameters without a gradient, and what it made of those is as bad as what the loop writes into them
        beside = [*self.ledger.suspects(by_forward=False), *self.ledger.script_writes()]
        if finite.any_nonfinite([*self._everything(), *beside]):
            found = self.findings("optimizer")
            found += self.ledger.findings("optimizer")
            named = {each.name for each in found}
            by_hooks = self.ledger.bad_script_writes()
            found += [finding("parameter", *bad, "optimizer") for bad in by_hooks if bad[0] not in named]
            self._trusted_writes = -1
            if found:
                copied.restore()
                self.ledger.restore_script_writes()
                self.ledger.forget_update()
            return found
        self._trust()
        self._certificate = certify(self.optimizer)
        return []

    def copy_for_update(self) -> UpdateSnapshot:
        """Parameters and optimizer state as they are now: to undo the update that follows, and to make it again."""
        if self._snapshot is None:
            self._snapshot = UpdateSnapshot(self.members.parameters, self.optimizer)
        self._snapshot.take()
        return self._snapshot

    def release(self) -> None:
        """A careful update was good on every rank. Where the proof holds from here on, its copy is not needed."""
        if self._policy.rollback.undo == "auto" and self._certificate is not None:
            self._snapshot = None

    def undo(self) -> None:
        """Take back a careful update that was good here and bad on another rank."""
        assert self._snapshot is not None
        self._snapshot.restore()
        self.ledger.forget_update()
        self._trusted_writes = -1

    # ---- containment

    def restore(self) -> None:
        """This step never happened: buffers, and what the forward pass wrote into parameters, as before it."""
        whole = self.ledger.restore()
        if self._sums is None:  # the first time in this step: from here on only a diagnosis may write
            self._not_restored = [] if whole else ["a parameter that the forward pass writes"]
            self._restore_program()
            self._sums = self._checksums()

    def restore_interrupted(self) -> None:
        """The guard was interrupted before a step was judged: its forward pass may have left NaN in buffers."""
        if self._policy.on_incident != "observe" and self.ledger.any_bad():
            self.ledger.restore_buffers()

    def _restore_program(self) -> None:
        """Put back what the program keeps itself.

        After a second refused step in a row generators and attributes are not restored: the same draw, or the same
        value of a counter, would otherwise fail again and again.
        """
        self._refused_in_a_row += 1
        before = self._program_at_begin
        if before is None:
            return
        if self._refused_in_a_row == 1:
            before.restore(beside=False)
        elif before.changed():
            self._not_restored.append(
                f"{', '.join(before.changed()[:3])}, not restored after a second refused step in a row"
            )

    def apart_from_others(self) -> contextlib.AbstractContextManager[None]:
        """While a diagnosis runs: what other processes train on as well is not touched by it."""
        return with_own_copies(self._everything_and_buffers())

    @contextlib.contextmanager
    def of_earlier_step(self, program: ProgramState | None) -> Iterator[None]:
        """What is restored and verified inside is an earlier step, which began with this state of the program."""
        present = self._sums, self._not_restored, self._program_at_begin, self._schedule_at_begin
        self._sums, self._not_restored, self._program_at_begin = None, [], program
        if self.scheduler is not None:
            self._schedule_at_begin = getattr(self.scheduler, "last_epoch", None)
        try:
            yield
        finally:
            self._sums, self._not_restored, self._program_at_begin, self._schedule_at_begin = present

    @property
    def program_at_begin(self) -> ProgramState | None:
        """The program's own generators and attributes when the step began."""
        return self._program_at_begin

    def verify(self) -> list[str]:
        """After `restore`: what is not as it was before the step, by name. Reads everything; for bad steps only.

        What lies in shared memory is changed by other processes at any time, so nothing can be said of it.
        """
        different = list(self._not_restored)
        if in_shared_memory(self._everything_and_buffers()):
            return different
        different += [f"buffer {name}" for name in self.ledger.verify()]
        if self._sums is not None and self._checksums() != self._sums:
            different.append("parameters, optimizer state or averages, which the diagnosis changed")
        if self._program_at_begin is not None and self._refused_in_a_row == 1:
            different += self._program_at_begin.changed()
        if self.scheduler is not None and self._policy.skips.scheduler == "hold":
            now = getattr(self.scheduler, "last_epoch", None)
            if self._schedule_at_begin is not None and now != self._schedule_at_begin:
                different.append("the schedule")
        return different

    def end(self) -> None:
        """The step is over, applied or not."""
        self._sums = None
        self._not_restored = []
        self._program_at_begin = None
        self.ledger.writes_at_begin = None  # what is written until the next step is written by the script

    def restore_for_replay(self, *, undone: bool) -> Callable[[], None]:
        """How a replay gets parameters and optimizer state as before the step, and leaves them so.

        The parameters are copied when the first replay begins, as far as the budget of memory allows: a forward pass
        may write them through `tensor.data`, of which nothing tells.

        Args:
            undone: the update created non-finite values, so the replay makes it again.
        """
        snapshot = self._snapshot if undone else None
        restore_parameters = self.ledger.restore_for_replay()

        def restore() -> None:
            if snapshot is not None:
                snapshot.restore()
            restore_parameters()

        return restore

    # ---- what is bad

    def untouched(self) -> bool:
        """Whether parameters and optimizer state were seen finite and only the optimizer wrote them since."""
        same_state = self._trusted_state is self.optimizer.state
        return same_state and count_writes(self._trusted) == self._trusted_writes

    def newly_bad_before(self, step: int) -> list[Finding]:
        """What was bad before this careful step and was not named yet."""
        found = [entry for entry in self._bad_before if entry.name not in self.bad_before]
        self.bad_before.update((entry.name, step) for entry in found)
        self._bad_before = []
        return found

    def findings(self, phase: Phase) -> list[Finding]:
        """What is non-finite, with statistics; in the phase `optimizer` only what the last careful step made so."""
        named: list[tuple[str, str, Tensor]] = [("parameter", n, p) for n, p in self.members.named()]
        named += [
            ("optimizer_state", f"{key} of {name}", tensor)
            for name, key, tensor in optimizer_tensors(self.optimizer, self.members)
        ]
        bad = [(kind, name, tensor) for kind, name, tensor in named if finite.any_nonfinite([tensor])]
        if phase != "optimizer" or self._snapshot is None:
            return [finding(kind, name, tensor, phase) for kind, name, tensor in bad]
        made = [entry for entry in bad if self._snapshot.was_finite(entry[2])]
        if not made:
            self._bad_before = [finding(kind, name, tensor, "state") for kind, name, tensor in bad]
        return [finding(kind, name, tensor, phase) for kind, name, tensor in made]

    def is_own(self, found: Sequence[Finding]) -> bool:
        """Whether this rank made any of what an update made non-finite; the rest came from ranks that sent it."""
        elsewhere = updated_elsewhere(self.optimizer)
        sent = {self.members.name_of(p) for p in self.members.parameters if id(p) in elsewhere}
        return any(entry.kind != "parameter" or entry.name not in sent for entry in found)

    def check(self, *, buffers: bool = True) -> list[Finding]:
        """Check everything now: parameters, optimizer state, averages and, if wanted, buffers."""
        found = self.findings("state")
        if buffers:
            found += self.ledger.findings("state")
        for module in self.averages:
            named = [*module.named_parameters(), *module.named_buffers()]
            found += [finding("ema", n, t, "state") for n, t in named if finite.any_nonfinite([t])]
        return found

    def count(self) -> int:
        """How many tensors `check` reads."""
        averaged = sum(len([*module.parameters(), *module.buffers()]) for module in self.averages)
        modules = [self.root, *(module for _, module in self.members.also)]
        return len(self._everything()) + sum(len(list(module.buffers())) for module in modules) + averaged

    # ---- parts

    def _trust(self) -> None:
        # inference tensors count no writes, and no update can write them
        self._trusted = [tensor for tensor in local_parts(self._everything()) if not tensor.is_inference()]
        self._trusted_state = self.optimizer.state
        self._trusted_writes = count_writes(self._trusted)

    def _everything(self) -> list[Tensor]:
        tensors: list[Tensor] = list(self.members.parameters)
        tensors += [tensor for _, _, tensor in optimizer_tensors(self.optimizer, self.members)]
        return tensors

    def _everything_and_buffers(self) -> list[Tensor]:
        return [*self._everything(), *(buffer for module in self.modules for buffer in module.buffers())]

    def _checksums(self) -> list[int]:
        """A number for each tensor that the diagnosis could touch: equal contents give equal numbers."""
        put_back_later = self.ledger.is_bad_script_write
        tensors = [tensor for tensor in self._everything() if not put_back_later(tensor)]
        tensors += [tensor for module in self.averages for tensor in module.parameters()]
        return [checksum(tensor) for tensor in tensors]


def checksum(tensor: Tensor) -> int:
    """A number that follows from a tensor's bits."""
    dense = finite.readable(tensor)
    if dense is None:
        return hash(tuple(tensor.shape))
    if not dense.is_contiguous():
        dense = dense.contiguous()
    size = dense.element_size()
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(size, torch.uint8)
    return int(dense.view(whole).sum(dtype=torch.int64))


def needs_closure(optimizer: Optimizer) -> bool:
    """Whether `optimizer.step` evaluates the model itself (LBFGS and its kind)."""
    if isinstance(optimizer, LBFGS):
        return True
    try:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
    except (TypeError, ValueError):
        return False
    return closure is not None and closure.default is inspect.Parameter.empty


def in_shared_memory(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The tensors whose memory other processes may hold as well."""
    return [
        tensor
        for tensor in tensors
        if tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not hasattr(tensor, "to_local")
        and tensor.is_shared()
    ]


@contextlib.contextmanager
def with_own_copies(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Puts copies in the place of tensors in shared memory for a while; whatever happens to them is lost."""
    common = [(tensor, tensor.data) for tensor in in_shared_memory(tensors)]
    for tensor, memory in common:
        tensor.data = memory.clone()
    try:
        yield
    finally:
        for tensor, memory in common:
            tensor.data = memory
