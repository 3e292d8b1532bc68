"""Edge inputs: batches that may occur in real data. Each is made from the user's own batch and tried for one step.

What a tensor of the batch is for follows its name and type, by the same names as in the data check. In a plain
`(inputs, labels)` tuple the first tensor of floats is the input, and whole numbers after it are labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from nantrap import finite
from nantrap.doctor.data.roles import DataOptions, is_inverted_mask, role_of
from nantrap.doctor.preflight.report import PreflightCheck
from nantrap.doctor.preflight.subject import StepResult, Subject, quiet, try_step
from nantrap.locate import batch_size, select, tensors_of
from nantrap.locate.batch import with_tensor
from nantrap.problems import Severity
from nantrap.thresholds import MASKED

BatchPart = Literal["input", "token", "label", "mask", "target_length", "other"]
_IGNORED = -100


@dataclass(frozen=True, slots=True)
class EdgeInput:
    """An edge input: how it is made, and how serious it is when the step breaks."""

    name: str
    make: Callable[[Any], Any]
    severity: Severity
    help: str = ""


def check_edges(subject: Subject) -> Iterator[PreflightCheck]:
    """Try every edge input that this batch allows."""
    for edge in EDGES:
        batch = _empty_targets(subject) if edge.name == "empty targets" else edge.make(subject.batch)
        name = f"edge: {edge.name}"
        if batch is None:
            yield PreflightCheck(name, "unjudged", "this batch has nothing to change that way")
            continue
        result = try_step(subject, batch)
        yield _nan_check(name, result) if edge.name == "NaN in one sample" else _check(name, edge, result)


def _check(name: str, edge: EdgeInput, result: StepResult) -> PreflightCheck:
    """The check for a step on an unusual batch: refused inputs are milder than NaN."""
    if result.finite:
        return PreflightCheck(name, "ok", result.message, data=result.values())
    if result.error and edge.name in ("shortest", "longest"):
        return PreflightCheck(
            name, "unjudged", f"sequences of this length are refused: {result.error}", data=result.values()
        )
    if result.error:
        help_text = edge.help if edge.name == "one sample" else "say clearly what is refused, or handle it"
        return PreflightCheck(name, "warning", result.message, help_text, result.values())
    severity = edge.severity
    if edge.name == "shortest" and result.cause == "empty_reduction":
        # a text of one token leaves a causal model nothing to predict; a whole batch of them is rare
        severity = "warning"
    return PreflightCheck(name, severity, result.message, result.help or edge.help, result.values())


def _nan_check(name: str, result: StepResult) -> PreflightCheck:
    """Here a failure is right: it must be noticed, and the guilty sample must be named."""
    if result.error:
        return PreflightCheck(name, "warning", result.message, data=result.values())
    if result.finite:
        return PreflightCheck(name, "ok", "it does not reach the loss", data=result.values())
    named = f"sample {result.samples[0]} is named" if result.samples else "the sample is not named"
    return PreflightCheck(name, "ok", f"caught, {named}", data=result.values())


def parts_of(batch: Any) -> list[tuple[BatchPart, str, Tensor]]:
    """What each tensor of the batch is for."""
    found: list[tuple[BatchPart, str, Tensor]] = []
    has_input = False
    for path, tensor in tensors_of(batch):
        role = role_of(path, DataOptions())
        named = any(character.isalpha() for character in path) and path != "batch"
        if role in ("input_length", "target_length", "identifier") and tensor.is_floating_point() and tensor.dim() > 1:
            role = "feature"  # `frames` are a video here, not how many there are
        part: BatchPart = "other"
        if not finite.is_ordinary(tensor):  # it cannot be changed by arithmetic
            found.append((part, path, tensor))
            continue
        if role == "mask" or (tensor.dtype == torch.bool and role != "label"):
            part = "mask"
        elif role == "target_length":
            part = "target_length"
        elif role in ("label", "target"):
            part = "label"
        elif role in ("input_length", "identifier", "constant"):
            part = "other"
        elif tensor.is_floating_point():
            part = "input" if named or not has_input else "other"
            has_input = True
        elif tensor.dim() >= 1 and not tensor.is_complex():
            part = "label" if has_input and not named else "token"
            has_input = has_input or part == "token"
        found.append((part, path, tensor))
    return found


def _on(kind: BatchPart, change: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
    """Change every tensor of one kind; `None` if the batch has none."""

    def make(batch: Any) -> Any:
        chosen = [tensor for part, _, tensor in parts_of(batch) if part == kind]
        for tensor in chosen:
            batch = with_tensor(batch, tensor, change(tensor))
        return batch if chosen else None

    return make


def _all_masked(batch: Any) -> Any:
    """The first sample has nothing to attend to."""
    chosen = [(path, tensor) for part, path, tensor in parts_of(batch) if part == "mask" and tensor.dim() >= 1]
    for path, tensor in chosen:
        masked = tensor.clone()
        additive = tensor.is_floating_point() and bool((tensor <= MASKED).any())
        masked[0] = float("-inf") if additive else int(is_inverted_mask(path))
        batch = with_tensor(batch, tensor, masked)
    return batch if chosen else None


def _empty_targets(subject: Subject) -> Any:
    """Every label is ignored, or the first target has length 0.

    Only a loss that is known to ignore a label gets it: any other one would index with it. CTC would even read and
    write memory that is not its own.
    """
    batch = subject.batch
    changed = False
    for part, _, tensor in parts_of(batch):
        if part == "target_length" and tensor.dim() >= 1:
            empty = tensor.clone()
            empty[0] = 0
            batch, changed = with_tensor(batch, tensor, empty), True
    if changed:
        return batch
    ignored = _ignored_label(subject) if _has_class_labels(batch) else None
    if ignored is None:
        return None
    return _on("label", lambda tensor: torch.full_like(tensor, ignored) if tensor.dtype == torch.int64 else tensor)(
        batch
    )


def _has_class_labels(batch: Any) -> bool:
    """Labels of sequences, or labels of which some are ignored already: a batch may have none left."""
    return any(
        part == "label" and tensor.dtype == torch.int64 and (tensor.dim() >= 2 or bool((tensor == _IGNORED).any()))
        for part, _, tensor in parts_of(batch)
    )


def _ignored_label(subject: Subject) -> int | None:
    """The label that the cross-entropies of a step leave out; `None` if there is none, or CTC uses labels too."""
    fresh = subject.fresh()
    torch.manual_seed(0)
    with quiet(), torch.no_grad(), _IgnoreWatch() as watch:
        fresh.total_loss(subject.batch)
    return watch.ignored[0] if len(set(watch.ignored)) == 1 and not watch.others else None


class _IgnoreWatch(TorchFunctionMode):
    """Notes which label the cross-entropies of a step ignore, and whether CTC is among its losses."""

    def __init__(self) -> None:
        super().__init__()
        self.ignored: list[int] = []
        self.others = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in (functional.cross_entropy, functional.nll_loss):
            self.ignored.append(int(given.get("ignore_index", args[4] if len(args) > 4 else _IGNORED)))
        self.others |= func in (functional.ctc_loss, torch.ctc_loss)
        return func(*args, **given)


def _one_sample(batch: Any) -> Any:
    size = batch_size(batch)
    return select(batch, [0], size) if size is not None and size > 1 else None


def _sequence(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Change the length of every tensor that runs along the same sequence as the input."""
    lengths = [
        tensor.shape[1]
        for part, _, tensor in parts_of(batch)
        if (part == "token" and tensor.dim() == 2) or (part == "input" and tensor.dim() == 3 and tensor.shape[1] > 4)
    ]
    if not lengths or lengths[0] < 2:
        return None
    for _, _, tensor in parts_of(batch):
        if tensor.dim() >= 2 and tensor.shape[1] == lengths[0]:
            batch = with_tensor(batch, tensor, change(tensor))
    return batch


def _nan_in_one(batch: Any) -> Any:
    def change(tensor: Tensor) -> Tensor:
        bad = tensor.clone()
        bad[0] = float("nan")
        return bad

    inputs = [tensor for part, _, tensor in parts_of(batch) if part == "input" and tensor.dim() >= 1]
    return with_tensor(batch, inputs[0], change(inputs[0])) if inputs else None


EDGES = (
    EdgeInput("zeros", _on("input", torch.zeros_like), "error", "an empty image or a silent recording looks like this"),
    EdgeInput("constant", _on("input", torch.ones_like), "error", "the deviation of a constant sample is zero"),
    EdgeInput("tiny", _on("input", lambda tensor: tensor * 1e-8), "error", "squares of such values underflow"),
    EdgeInput("huge", _on("input", lambda tensor: tensor * 1e4), "warning", "scale or clip the inputs"),
    EdgeInput("negative", _on("input", lambda tensor: -tensor.abs()), "error", "a logarithm or a root of the input"),
    EdgeInput(
        "all masked", _all_masked, "error", "softmax or mean over nothing is NaN; nantrap.ops.masked_softmax is not"
    ),
    EdgeInput("one sample", _one_sample, "error", "the last batch of an epoch can be this small; drop_last avoids it"),
    EdgeInput("empty targets", lambda batch: batch, "error", "the mean over zero labels is NaN"),
    EdgeInput(
        "shortest", lambda batch: _sequence(batch, lambda tensor: tensor[:, :1]), "error", "texts can be this short"
    ),
    EdgeInput(
        "longest",
        lambda batch: _sequence(batch, lambda tensor: torch.cat([tensor, tensor], dim=1)),
        "warning",
        "longer than in this batch",
    ),
    EdgeInput("NaN in one sample", _nan_in_one, "error"),
)
