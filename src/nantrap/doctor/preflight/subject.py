"""What is tested: model, optimizer, batch and loss, from a factory, a dict or a plain module; and one step of it.

Every check gets fresh copies, so that none sees what another one did. A step is made under the guard: it ends finite,
or with the place and the cause of the failure.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from nantrap.doctor.data.readers.factory import described, load_object
from nantrap.errors import UsageError
from nantrap.guard import Diagnosis, Guard, Policy, Rollback
from nantrap.incident import Incident
from nantrap.locate import batch_size
from nantrap.locate.batch import each_alone

LossFunction = Callable[[Any, Any], Any]
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_SECONDS = 10.0
"""How long a failure is diagnosed."""
_WANTED = ("model", "optimizer", "batch", "loss")


@dataclass(frozen=True, slots=True)
class Subject:
    """A model with everything a training step needs.

    Attributes:
        name: how the user calls it.
        model: in training mode.
        optimizer: of its parameters.
        batch: one batch.
        loss: the loss of a model and a batch: a tensor, or a dict of terms.
        expected_loss: what the first loss should be, if the factory gives it.
        defaults: which parts were not given, in words.
        bound: the loss takes a batch alone and uses the model it was made with, so every copy is made by the factory.
        again: makes the same subject again.
    """

    name: str
    model: nn.Module
    optimizer: Optimizer
    batch: Any
    loss: LossFunction
    expected_loss: float | None = None
    defaults: tuple[str, ...] = ()
    bound: bool = False
    again: Callable[[], Subject] | None = field(default=None, repr=False)

    def fresh(self) -> Subject:
        """The subject with copies of model and optimizer, as they were made."""
        if self.bound and self.again is not None:
            return self.again()
        try:
            model, optimizer = copy.deepcopy((self.model, self.optimizer))
        except Exception as error:  # a model may hold what cannot be copied; then it is made again
            if self.again is None:
                raise UsageError(
                    f"{self.name}: the model cannot be copied ({error}); give a factory instead of the object"
                ) from error
            return self.again()
        return replace(self, model=model, optimizer=optimizer)

    def loss_of(self, batch: Any) -> Any:
        """The loss of this model on a batch: a tensor or a dict of terms."""
        return self.loss(self.model, batch)

    def total_loss(self, batch: Any) -> Tensor:
        """The loss as one tensor."""
        found = self.loss_of(batch)
        if isinstance(found, Tensor):
            return found
        total: Tensor = torch.stack([term.float() for term in found.values()]).sum()
        return total

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))

    def describe(self) -> str:
        """`MLP, 1,234 parameters, AdamW with learning rate 0.001, batch of 8`."""
        count = sum(parameter.numel() for parameter in self.model.parameters())
        size = batch_size(self.batch)
        rate = self.optimizer.param_groups[0].get("lr", float("nan"))
        words = [
            type(self.model).__name__,
            f"{count:,} parameters",
            f"{type(self.optimizer).__name__} with learning rate {float(rate):g}",
        ]
        return ", ".join([*words, f"batch of {size:,}"] if size is not None else words)


def make_subject(target: Any, given: Mapping[str, Any]) -> Subject:
    """The subject behind `module:factory`, a function, a dict or a module.

    Args:
        target: what the user named.
        given: further parts: optimizer, batch, loss, expected_loss.
    """
    name = target if isinstance(target, str) else getattr(target, "__qualname__", type(target).__name__)
    found = load_object(target) if isinstance(target, str) else target
    if callable(found) and not isinstance(found, nn.Module):
        function = found
        torch.manual_seed(0)
        try:
            found = function()
        except (Exception, SystemExit) as error:
            hint = "; a factory takes no arguments" if isinstance(error, TypeError) else ""
            raise UsageError(f"{name} raised {described(error)}{hint}") from error
        return _subject(name, found, given, again=_maker(name, function, given))
    return _subject(name, found, given)


def _maker(name: str, function: Callable[[], Any], given: Mapping[str, Any]) -> Callable[[], Subject]:
    """Makes the same subject again: from the same seed, and able to be made again itself."""

    def make() -> Subject:
        torch.manual_seed(0)
        return _subject(name, function(), given, again=make)

    return make


def _subject(name: str, found: Any, given: Mapping[str, Any], again: Callable[[], Subject] | None = None) -> Subject:
    """The subject of a preflight from what a factory gave, with defaults for what it did not give."""
    parts: dict[str, Any] = {}
    if isinstance(found, nn.Module):
        parts = {"model": found}
    elif isinstance(found, Mapping):
        parts = dict(found)
    else:
        raise UsageError(
            f"{name} gave an object of type {type(found).__name__}; a factory returns a dict with "
            f"{', '.join(_WANTED)}, or a torch module"
        )
    parts.update({key: value for key, value in given.items() if value is not None})
    model = parts.get("model")
    if not isinstance(model, nn.Module):
        raise UsageError(f"{name}: model is a {type(model).__name__}, not a torch module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError(f"{name}: the model has no parameter that can be trained")
    defaults = []
    if parts.get("optimizer") is None:
        parts["optimizer"] = torch.optim.AdamW(model.parameters(), lr=1e-3)
        defaults.append("AdamW with learning rate 0.001")
    if parts.get("batch") is None:
        parts["batch"], words = _example_batch(model, name)
        defaults.append(words)
    if parts.get("loss") is None:
        parts["loss"] = _mean_square
        defaults.append("the mean square of the output as the loss")
    if not isinstance(parts["optimizer"], Optimizer):
        raise UsageError(f"{name}: optimizer is a {type(parts['optimizer']).__name__}, not a torch optimizer")
    if not callable(parts["loss"]):
        raise UsageError(f"{name}: loss is not a function of model and batch")
    bound = _takes_batch_alone(parts["loss"])
    if bound and again is None:
        raise UsageError(
            f"{name}: a loss that takes the batch alone uses the model it was made with; give a factory that makes "
            "both, or let the loss take model and batch"
        )
    loss = _without_model(parts["loss"]) if bound else parts["loss"]
    model.train()
    expected = parts.get("expected_loss")
    return Subject(
        name,
        model,
        parts["optimizer"],
        each_alone(parts["batch"]),
        loss,
        None if expected is None else float(expected),
        tuple(defaults),
        bound,
        again,
    )


def _takes_batch_alone(loss: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(loss).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [each for each in parameters if each.default is each.empty and each.kind in _POSITIONAL]
    return len(needed) == 1 and not any(each.kind is each.VAR_POSITIONAL for each in parameters)


def _without_model(loss: Callable[[Any], Any]) -> LossFunction:
    return lambda _model, batch: loss(batch)


def _mean_square(model: nn.Module, batch: Any) -> Tensor:
    """The default loss: the mean square of every float the model returns."""
    output = model(*batch) if isinstance(batch, tuple) else model(batch)
    tensors = [output] if isinstance(output, Tensor) else [part for part in _values(output) if isinstance(part, Tensor)]
    floats = [tensor.float() for tensor in tensors if tensor.is_floating_point()]
    if not floats:
        raise UsageError("the model returns no tensor of floats; give a loss: a function of model and batch")
    return torch.stack([tensor.square().mean() for tensor in floats]).sum()


def _values(output: Any) -> list[Any]:
    if isinstance(output, Mapping):
        return list(output.values())
    return list(output) if isinstance(output, (list, tuple)) else []


def _example_batch(model: nn.Module, name: str) -> tuple[Any, str]:
    """Inputs that fit the model, and what they are: Lightning's `example_input_array`, or random ones."""
    example = getattr(model, "example_input_array", None)
    if example is not None:
        return example, "the model's example_input_array as the batch"
    made = _random_inputs(model)
    if made is None:
        raise UsageError(f"{name}: no input can be guessed for this module; return a dict with model, batch and loss")
    return made.to(next(model.parameters()).device), "random inputs of the first layer's size"


def _random_inputs(model: nn.Module) -> Tensor | None:
    """Inputs that fit the model's first layer; `None` if that is of an unknown kind."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            return torch.randn(8, module.in_features, generator=generator, device=generator.device)
        if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)):
            rank = {nn.Conv1d: 1, nn.Conv2d: 2, nn.Conv3d: 3}[type(module)]
            return torch.randn(8, module.in_channels, *(32,) * rank, generator=generator, device=generator.device)
        if isinstance(module, nn.Embedding):
            return torch.randint(0, module.num_embeddings, (8, 16), generator=generator, device=generator.device)
        if isinstance(module, nn.RNNBase):
            return torch.randn(8, 16, module.input_size, generator=generator, device=generator.device)
        if isinstance(module, nn.TransformerEncoderLayer):
            return torch.randn(8, 16, module.self_attn.embed_dim, generator=generator, device=generator.device)
    return None


@dataclass(frozen=True, slots=True)
class StepResult:
    """How a step ended.

    Attributes:
        finite: whether loss, gradients and the update are finite.
        loss: the loss.
        grad_norm: the gradient norm.
        where: module, operation and line of the failure.
        cause: slug of the best explanation.
        code: its code.
        help: its fix.
        samples: the guilty samples of the batch.
        error: what was raised instead.
    """

    finite: bool
    loss: float = float("nan")
    grad_norm: float = float("nan")
    where: str = ""
    cause: str = ""
    code: str = ""
    help: str = ""
    samples: tuple[int, ...] = ()
    error: str = ""

    @property
    def message(self) -> str:
        """The outcome in one line."""
        if self.error:
            return f"raised {self.error}"
        if self.finite:
            return f"loss {self.loss:.4g}, gradient norm {self.grad_norm:.3g}"
        return f"{self.cause}[{self.code}] {self.where}"

    def values(self) -> dict[str, Any]:
        """For the JSON."""
        return {key: value for key, value in asdict(self).items() if key != "help"} | {"samples": list(self.samples)}


def try_step(
    subject: Subject,
    batch: Any = None,
    *,
    autocast: torch.dtype | None = None,
    diagnose: bool = True,
    seed: int = 0,
) -> StepResult:
    """Make one guarded step on fresh copies.

    Args:
        subject: what is tested.
        batch: another batch than the subject's.
        autocast: run forward and loss in this precision.
        diagnose: locate and explain a failure.
        seed: of torch's random numbers.
    """
    fresh = subject.fresh()
    used = subject.batch if batch is None else batch
    # Nothing is written to disk, and a single step needs no memory of earlier states.
    policy = Policy(
        diagnose="full" if diagnose else "off",
        diagnosis=Diagnosis(seconds=_SECONDS),
        rollback=Rollback(anchor_every=0),
        spikes="off",
        bundle="off",
    )

    def loss(part: Any) -> Any:
        with _precision(subject.device.type, autocast):
            return fresh.loss_of(part)

    torch.manual_seed(seed)
    with quiet(), Guard(fresh.model, fresh.optimizer, max_grad_norm=None, policy=policy, quiet=True) as guard:
        try:
            outcome = guard.attempt(loss, used)
        except (Exception, SystemExit) as error:
            return StepResult(False, error=described(error))
    if outcome.incident is None:
        return StepResult(True, outcome.loss, outcome.grad_norm)
    return _failed(outcome.incident, outcome.loss, outcome.grad_norm)


def _failed(incident: Incident, loss: float, grad_norm: float) -> StepResult:
    """The result of a step that failed, from its incident."""
    cause = incident.causes[0] if incident.causes else None
    return StepResult(
        False,
        loss,
        grad_norm,
        place_of(incident),
        cause.slug if cause else "unknown",
        cause.code if cause else "NT000",
        cause.fix.words if cause and cause.fix else "",
        incident.samples,
    )


def place_of(incident: Incident) -> str:
    """`in head (aten.log) at model.py:41`."""
    words = [f"in {incident.module}"] if incident.module else []
    if incident.op:
        words.append(f"({incident.op})")
    if incident.source is not None:
        words.append(f"at {os.path.basename(incident.source.file)}:{incident.source.line}")
    return " ".join(words) or f"in the {incident.phase} phase"


def _precision(device: str, dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast(device, dtype=dtype) if dtype is not None else contextlib.nullcontext()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The user's warnings are for training, not for a hundred trial steps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
