"""What the guards of one script share: each optimizer has its own guard, but there is one script.

`AskedTensors` holds the scalars that a script has read or tested and that had no backward pass yet, and a bad batch
that it has tested. A script may test its data before it calls the model (`if torch.isnan(images).any(): continue`).
Then no forward pass and no loss is ever seen. But the script asked about a batch of its loader, that batch is not
finite, and the next one is loaded before a model was called: the script has left it out.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nantrap import finite
from nantrap.incident import Incident
from nantrap.launch.loaders import Batches, LoadedBatch
from nantrap.locate.twoline.caller import KeptFrame, keep_frames

_MOST = 16


@dataclass(frozen=True, slots=True)
class BadData:
    """A batch that is not finite.

    Attributes:
        batch: as the loader gave it.
        tensor: the part that the script tested.
        name: what the script calls it.
    """

    batch: LoadedBatch
    tensor: Tensor
    name: str


class AskedTensors:
    """Holds the scalars that the script read or tested since the last forward pass began, with their graphs.

    `open` says whether a forward pass waits for its backward pass; at any other time nothing is noted.
    """

    def __init__(self) -> None:
        self.open = False
        self.tensors: list[Tensor] = []
        self.frames: list[KeptFrame] = []
        """The script's frames when it read the first scalar that is not finite."""
        self.replaced = False
        """Whether the script ran a backward pass from a constant since then."""
        self.ended = ""
        """How the script ended, in words: what it tested last is the reason."""
        self.data: BadData | None = None
        """The batch that the script has tested and not used yet, if it is not finite."""
        self.trained_on: LoadedBatch | None = None
        """The newest batch of the last backward pass: a test of it comes too late to leave it out."""
        self.output: Tensor | None = None
        """The sum of an output of the model that the script has tested, if it is not finite. There may be no loss."""
        self._trained: weakref.ref[Tensor] | None = None
        self._copied: set[int] = set()

    def note_output(self, tensor: Tensor) -> None:
        """The script tests a tensor with a graph that is no scalar: an output of the model, before there is a loss."""
        if self.output is None and tensor.grad_fn is not None and finite.any_nonfinite([tensor.detach()]):
            with torch.enable_grad():
                self.output = tensor.sum()
            self.frames = self.frames or keep_frames()

    def note_data(self, tensor: Tensor, batches: Batches) -> None:
        """The script tests a tensor without a graph: is it a batch of its loader, or made of one, and bad?"""
        if self.data is not None or not batches.last or tensor.dim() < 2 or not tensor.is_floating_point():
            return
        batch, is_given = batches.position(tensor)
        if batch is None or batch is self.trained_on:
            return
        if finite.any_nonfinite([tensor]) if is_given else batch.is_bad_where(tensor):
            held = next(iter(keep_frames(1)), None)
            names = [] if held is None else [name for name, value in held.values.items() if value is tensor]
            self.data = BadData(batch, tensor, names[0] if names else "batch")

    def trained(self, loss: Any) -> None:
        """A backward pass runs from this loss: what the script asks about it afterwards is of no interest."""
        if isinstance(loss, Tensor):
            self._trained = weakref.ref(loss)

    def note(self, tensor: Any, *, copies: bool = False) -> None:
        """The script reads or tests a tensor; only a scalar with a graph can be a loss.

        Args:
            tensor: what it asks about.
            copies: it takes a copy without a graph (`detach`), mostly to log it. That is no test.
        """
        if not copies:
            self._copied.discard(id(tensor))
        if (
            tensor.grad_fn is not None
            and tensor.numel() == 1
            and not any(tensor is each for each in self.tensors)
            and (self._trained is None or self._trained() is not tensor)
        ):
            self.tensors.append(tensor)
            if copies:
                self._copied.add(id(tensor))
            if len(self.tensors) > _MOST:  # the last ones are kept: other values are printed before a loss is tested
                del self.tensors[0]
            # here there is no device to wait for; what the loss was computed from is in the script's variables now
            if tensor.is_cpu and not self.frames and not self._is_finite(tensor):
                self.frames = keep_frames()

    def take(
        self, *, instead_of: Tensor | None = None, wanted: Callable[[Tensor], bool] = lambda _: True
    ) -> list[Tensor]:
        """Takes the losses that are not finite, and clears the list.

        Args:
            instead_of: the loss of the backward pass that comes now, which is not abandoned.
            wanted: says of one that is not finite whether it is asked for; the others stay in the list.
        """
        output, self.output = self.output, None
        if instead_of is None:
            self._copied = set()
        if not self.tensors:
            return [output] if output is not None and instead_of is None and wanted(output) else []
        tensors, self.tensors = self.tensors, []
        if len(tensors) == 1 and tensors[0] is instead_of:  # the usual case: the loss was printed
            self.frames = []
            return []
        bad = [each for each in tensors if each is not instead_of and not self._is_finite(each)]
        found = [each for each in bad if wanted(each)]
        self.tensors = [each for each in bad if not any(each is one for one in found)]
        if not found and output is not None and instead_of is None and wanted(output):
            return [output]
        return found

    def was_read(self, tensor: Tensor) -> bool:
        """Whether the script read or tested a tensor that was just taken, and did not only copy it to log it."""
        return id(tensor) not in self._copied

    def take_frames(self) -> list[KeptFrame]:
        """The frames in which the script read the bad scalar. They are given once; empty if they are not known."""
        frames, self.frames = self.frames, []
        return frames

    def _is_finite(self, tensor: Tensor) -> bool:
        was, self.open = self.open, False  # what is read here is not asked by the script
        try:
            return not finite.any_nonfinite([tensor.detach()])
        finally:
            self.open = was


_JUDGED = 16


class DiagnosedLosses:
    """The last loss that each guard diagnosed, with its incident. Two optimizers may share one loss.

    A loss is held weakly, so that its graph can be freed.
    """

    def __init__(self) -> None:
        self._last: dict[int, tuple[weakref.ref[Tensor], Incident]] = {}
        self._judged: deque[tuple[int, weakref.ref[Tensor]]] = deque(maxlen=_JUDGED)
        self.steps: Callable[[], int] = lambda: 0
        """How many steps the guards have seen."""
        self._bad_call = (0, "", "")

    def remember(self, by: object, loss: Tensor, incident: Incident) -> None:
        """This guard has diagnosed a loss."""
        self._last[id(by)] = weakref.ref(loss), incident

    def judge(self, by: object, losses: Sequence[Tensor]) -> None:
        """This guard has refused a step that was made of these losses."""
        self._judged.extend((id(by), weakref.ref(loss)) for loss in losses)

    def is_judged_by_another(self, guard: object, loss: Tensor) -> bool:
        """Whether another guard has refused a step that was made of this loss."""
        return any(each != id(guard) and known() is loss for each, known in self._judged)

    def note_call(self, what: str, words: str) -> None:
        """A model gave a bad value without gradients."""
        self._bad_call = (self.steps(), what, words)

    def bad_call(self) -> tuple[str, str]:
        """The last such value, if it is of this step; else empty words."""
        step, what, words = self._bad_call
        return (what, words) if step == self.steps() else ("", "")

    def by_another(self, guard: object, loss: Tensor) -> Incident | None:
        """The incident of another guard that diagnosed the same loss."""
        for each, (known, incident) in self._last.items():
            if each != id(guard) and known() is loss:
                return incident
        return None


class Activity:
    """Whether a guard of this process is at work: calls that come meanwhile are its own, not the script's."""

    __slots__ = ("busy",)

    def __init__(self) -> None:
        self.busy = False

    @contextlib.contextmanager
    def of_guard(self) -> Iterator[None]:
        """What is asked and tested meanwhile is not asked by the script."""
        was, self.busy = self.busy, True
        try:
            yield
        finally:
            self.busy = was


@dataclass(frozen=True, slots=True)
class Shared:
    """Shared by all guards of a script.

    Attributes:
        batches: what the data loaders gave.
        asked: the scalars that the script asked about.
        activity: whether any guard of the process is at work.
        diagnosed: the losses that were diagnosed.
    """

    batches: Batches
    asked: AskedTensors = field(default_factory=AskedTensors)
    activity: Activity = field(default_factory=Activity)
    diagnosed: DiagnosedLosses = field(default_factory=DiagnosedLosses)
