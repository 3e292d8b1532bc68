"""`nantrap.replay`: an incident's bundle run again, here, and compared with what happened there.

The entry is the user's code of today. There are three forms, which differ in how many arguments the function needs:

    build()              returns (model, optimizer, loss_fn)
    loss(batch)          returns the loss; the model is a variable of the function's module
    loss(model, batch)   the same, and the model is passed in

In the last two forms the optimizer is made again from what the bundle says, if it is one of `torch.optim`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nantrap.errors import FormatError, NantrapError, UsageError
from nantrap.finite import any_nonfinite, tensor_stats
from nantrap.guard.guard import Guard
from nantrap.guard.policy import Policy, Rollback
from nantrap.incident import Incident, TensorStats
from nantrap.incident.wording import escaped, some_of
from nantrap.locate import RngState, tensors_of
from nantrap.locate.trace.pure_operations import pure_operation
from nantrap.locate.trace.storage import map_leaves
from nantrap.record import ReadBundle, read_bundle
from nantrap.record.structure import unflatten


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a replay showed.

    Attributes:
        reproduced: whether the failure came again; `None` when nothing could be run.
        mode: `step` (the whole step), `operation` (the guilty operation on its recorded inputs) or `none`.
        recorded: the incident of the bundle.
        incident: the incident of this run, in mode `step`.
        output: statistics of the operation's result, in mode `operation`.
        differences: what differs from the recorded incident, in words.
    """

    reproduced: bool | None
    mode: str
    recorded: Incident
    incident: Incident | None = None
    output: TensorStats | None = None
    differences: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """What the replay shows about a fix, in one sentence; about the guilty operation where only that was run."""
        if self.reproduced is None:
            return f"Nothing could be run: {self.differences[0] if self.differences else 'the bundle is empty'}."
        if self.mode == "operation":
            found = "non-finite values again" if self.reproduced else "finite values here"
            return f"Running {self.recorded.op} again on its recorded inputs gives {found}."
        step = f"step {self.recorded.step:,}"
        if self.incident is None:
            return f"The failure is gone: {step} is finite with this code."
        if _same_failure(self.recorded, self.incident):
            return f"The failure is still there: {step} ends with {_failure(self.incident)}."
        was, now = _failure(self.recorded), _failure(self.incident)
        return f"{step.capitalize()} still fails, in another way: it was {was}, and now it is {now}."


def replay(
    bundle: str | os.PathLike[str],
    *,
    entry: str | Callable[..., Any] | None = None,
    fp32: bool = False,
    device: str = "cpu",
) -> ReplayResult:
    """Run an incident again from its bundle. Nothing is ever unpickled.

    Args:
        bundle: the folder of an incident (`runs/exp1/incidents/001204-r0`).
        entry: the user's code, as `module:function` or a function. It takes the captured batch, or the model and the
            batch, and returns the loss; or it takes nothing and returns model, optimizer and a function from batch to
            loss. Without it only the guilty operation is run, on its recorded inputs.
        fp32: widen everything to float32, to see whether precision is the cause.
        device: where to run.
    """
    read = read_bundle(bundle)
    if entry is not None:
        return _replay_step(read, entry, fp32=fp32, device=device)
    if "origin" in read.values and "origin.safetensors" in read.files:
        return _replay_operation(read, fp32=fp32, device=device)
    reason = (
        "the bundle is light and holds no tensors. "
        "`nantrap run --bundle-data` or Policy(bundle=Bundle(kind='full', data=True)) keeps them"
        if read.kind == "light"
        else "without entry= only the guilty operation could be run, and its inputs were not kept "
        "(Policy(bundle=Bundle(data=True)) allows data in a bundle)"
    )
    return ReplayResult(None, "none", read.incident, differences=(reason,))


def _replay_step(read: ReadBundle, entry: str | Callable[..., Any], *, fp32: bool, device: str) -> ReplayResult:
    """Run the whole step again with the user's code of today, from the recorded state, batch and random streams."""
    state, batch_tensors = read.tensors("state"), read.tensors("batch")
    if not state or "batch" not in read.values:
        raise UsageError(
            f"{read.path}: the whole step needs the state and the batch; this bundle has no "
            f"{'state' if not state else 'batch'}. Policy(bundle=Bundle(kind='full', data=True)) keeps both, "
            "for the steps of guard.attempt(loss_fn, batch)"
        )
    given = entry_of(entry, state)
    model, optimizer = given.model.to(device), given.optimizer
    _load_model(model, state)
    if optimizer is None:
        optimizer = optimizer_of(read, model, state)
    else:
        _load_optimizer(optimizer, unflatten(read.values["optimizer"], state))
    batch = _moved(unflatten(read.values["batch"], batch_tensors), device)
    if fp32:
        model.float()
        batch = _widened(batch)
    loss_fn = _scaled(given.loss_fn, 1.0 if read.incident.phase == "optimizer" else read.values.get("loss_factor"))
    policy = Policy(on_incident="skip", rollback=Rollback(anchor_every=0), bundle="off")
    with Guard(model, optimizer, max_grad_norm=None, policy=policy, quiet=True) as guard:
        _restore_rng(read.values.get("rng"))
        outcome = guarded_call(guard.attempt, loss_fn, batch)
    incident = None
    if outcome.incident is not None:  # the replay's own guard counts from 0
        incident = replace(
            outcome.incident, step=read.incident.step, epoch=read.incident.epoch, batch=read.incident.batch
        )
    return ReplayResult(
        incident is not None, "step", read.incident, incident, differences=_differences(read.incident, incident)
    )


def _scaled(loss_fn: Callable[[Any], Any], factor: Any) -> Callable[[Any], Any]:
    """The loss as it is, with gradients as large as they were: a loss scale decides whether float16 overflows."""
    if not isinstance(factor, (int, float)) or factor == 1.0:
        return loss_fn

    def scaled(batch: Any) -> Any:
        loss = loss_fn(batch)
        for _, term in tensors_of(loss):
            if term.requires_grad:
                term.register_hook(lambda gradient: gradient * factor)
        return loss

    return scaled


def _same_failure(recorded: Incident, now: Incident) -> bool:
    """Whether it is the same failure for a person: the same cause, or the same operation at the same place."""
    if recorded.causes and now.causes:
        return recorded.causes[0].slug == now.causes[0].slug
    return (recorded.phase, recorded.module, recorded.op) == (now.phase, now.module, now.op)


def _failure(incident: Incident) -> str:
    cause = f"{incident.causes[0].slug}[{incident.causes[0].code}]" if incident.causes else "non-finite values"
    operation = f" ({incident.op})" if incident.op else ""
    return escaped(f"{cause} in {incident.module or incident.phase}{operation}", most=300)


def _replay_operation(read: ReadBundle, *, fp32: bool, device: str) -> ReplayResult:
    """Run the guilty operation alone on its recorded inputs; the user's code is not needed."""
    origin, tensors = read.values["origin"], read.tensors("origin")
    if not (isinstance(origin, dict) and origin.keys() >= {"op", "args", "kwargs"}):
        raise FormatError(f"{read.path / 'replay.json'}: field origin: expected op, args and kwargs")
    args = _moved(unflatten(origin["args"], tensors), device)
    kwargs = _moved(unflatten(origin["kwargs"], tensors), device)
    if fp32:
        args, kwargs = _widened(args), _widened(kwargs)
    func = pure_operation(str(origin["op"]), (args, kwargs))
    with torch.no_grad():
        result = _called(func, args, kwargs, str(origin["op"]))
    outputs = [result] if isinstance(result, Tensor) else [t for t in result or args[:1] if isinstance(t, Tensor)]
    bad = next((t for t in outputs if any_nonfinite([t])), outputs[0] if outputs else None)
    stats = None if bad is None else tensor_stats(bad)
    reproduced = bool(stats and stats.nonfinite)
    differences = () if reproduced else (f"{origin['op']} is finite on its recorded inputs here",)
    return ReplayResult(reproduced, "operation", read.incident, output=stats, differences=differences)


def _called(func: Callable[..., Any], args: Any, kwargs: Any, name: str) -> Any:
    try:
        return func(*args, **kwargs)
    except Exception as error:  # arguments that do not fit the operation: the bundle was changed
        reason = escaped(str(error), most=200)
        raise FormatError(f"{escaped(name, most=80)} cannot be run on what the bundle holds: {reason}") from error


def _load_model(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Put the recorded values into a model, which must have exactly these names and shapes."""
    named: dict[str, Tensor] = {f"parameter.{n}": p for n, p in model.named_parameters()}
    named |= {f"buffer.{n}": b for n, b in model.named_buffers()}
    with torch.no_grad():
        for name, tensor in named.items():
            if name not in state:
                raise FormatError(f"{name.partition('.')[2]} of this model is not in the bundle: it is another model")
            if state[name].shape != tensor.shape:
                here, there = tuple(tensor.shape), tuple(state[name].shape)
                raise FormatError(f"{name.partition('.')[2]} has shape {here} here and {there} in the bundle")
            tensor.copy_(state[name])


def _load_optimizer(optimizer: torch.optim.Optimizer, saved: Any) -> None:
    """The recorded state with today's settings: a new eps, weight decay or learning rate may be the fix.

    Where a schedule moved the learning rate, today's initial one is moved by the same factor.
    """
    today = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    try:
        optimizer.load_state_dict(saved)
    except (ValueError, KeyError, RuntimeError) as error:
        raise UsageError(f"the optimizer of the entry does not take the state in the bundle: {error}") from error
    for group, settings in zip(optimizer.param_groups, today, strict=True):
        initial, recorded = group.get("initial_lr"), group.get("lr")
        group.update(settings)
        if isinstance(initial, float) and initial > 0.0 and "initial_lr" not in settings:
            group["lr"] = settings["lr"] * float(recorded) / initial  # type: ignore[arg-type]


def _restore_rng(described: Any) -> None:
    """Put the recorded random streams back, as far as the bundle has them."""
    if not described:
        return
    python, numpy = described["python"], described["numpy"]
    RngState(
        torch.tensor(described["torch_cpu"], dtype=torch.uint8),
        tuple(torch.tensor(device, dtype=torch.uint8) for device in described["torch_cuda"])
        if RngState.capture().torch_devices
        else (),
        (python[0], tuple(python[1]), python[2]),
        (numpy[0], np.array(numpy[1], dtype=np.uint32), *numpy[2:]) if numpy else RngState.capture().numpy,
    ).restore()


def _moved(value: Any, device: str) -> Any:
    return map_leaves(value, lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf)


def _widened(value: Any) -> Any:
    def widen(leaf: Any) -> Any:
        half = isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.element_size() < 4
        return leaf.float() if half else leaf

    return map_leaves(value, widen)


def _differences(recorded: Incident, now: Incident | None) -> tuple[str, ...]:
    """In what the replay differs from what was recorded, in words; empty if it failed in the same way."""
    if now is None:
        return ("the step is finite here",)
    pairs = [(name, getattr(recorded, name), getattr(now, name)) for name in ("phase", "module", "op", "node")]
    differences = [f"{name} was {a} and is {b}" for name, a, b in pairs if a != b]
    before = recorded.causes[0].slug if recorded.causes else None
    after = now.causes[0].slug if now.causes else None
    if before != after:
        differences.append(f"the cause was {before} and is {after}")
    if recorded.loss is not None and now.loss is not None:
        same = recorded.loss == now.loss or (recorded.loss != recorded.loss and now.loss != now.loss)
        if not same:
            differences.append(f"the loss was {recorded.loss:.9g} and is {now.loss:.9g}")
    return tuple(differences)


_FORMS = (
    "it takes nothing and returns (model, optimizer, loss_fn), or takes the batch, or the model and the batch, "
    "and returns the loss"
)


@dataclass(frozen=True, slots=True)
class ReplayEntry:
    """What a step is made of, as the user's code has it today.

    Attributes:
        model: the model; the state of the bundle is not loaded yet.
        optimizer: the optimizer, or `None` if the bundle says how to make it.
        loss_fn: from batch to loss.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    loss_fn: Callable[[Any], Any]


def entry_of(entry: str | Callable[..., Any], state: Mapping[str, Tensor]) -> ReplayEntry:
    """Call or read the entry.

    Args:
        entry: a function, or `module:function`.
        state: the tensors of the bundle, by which the model is recognised.
    """
    function = _function(entry) if isinstance(entry, str) else entry
    needed = _needed_arguments(function)
    if needed == 0:
        return _built(function)
    if needed > 2:
        raise UsageError(f"the entry needs {needed} arguments: {_FORMS}")
    model = _model_beside(function, state)
    return ReplayEntry(model, None, function if needed == 1 else functools.partial(function, model))


def optimizer_of(read: ReadBundle, model: nn.Module, state: Mapping[str, Tensor]) -> torch.optim.Optimizer:
    """The optimizer of a bundle, made again for this model; its state is not loaded yet.

    One that is not part of `torch.optim` cannot be made without the user's code. Then the step is run up to its
    gradients, which is all that a failure before the update needs.
    """
    groups = _groups(read.values.get("optimizer_parameters"), model)
    kind = _torch_optimizer(str(read.values.get("optimizer_class", "")))
    if groups is not None and kind is not None:
        made: torch.optim.Optimizer = kind(groups, lr=1e-3)  # type: ignore[call-arg]
        made.load_state_dict(unflatten(read.values["optimizer"], state))
        return made
    if read.incident.phase == "optimizer":
        raise UsageError(
            "the update itself failed, and its optimizer cannot be made from the bundle; "
            "give a function that takes nothing and returns (model, optimizer, loss_fn)"
        )
    return torch.optim.SGD(model.parameters(), lr=0.0)


def guarded_call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the user's code. What it raises is reported as the user's error, not as one of nantrap."""
    try:
        return function(*arguments)
    except NantrapError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(f"the entry raised {type(error).__name__}: {_words(error)}") from error


def _function(entry: str) -> Callable[..., Any]:
    """Import `module:function`; the folder in which the command runs counts, as for a script."""
    module_name, _, function_name = entry.partition(":")
    if not (module_name and function_name):
        raise UsageError(f"--entry {entry}: write it as module:function, e.g. train:build")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {_words(error)}"
        raise UsageError(f"--entry {entry}: {module_name} cannot be imported: {said}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise UsageError(f"--entry {entry}: {module_name} has no function {function_name!r}")
    return function  # type: ignore[no-any-return]


def _needed_arguments(function: Callable[..., Any]) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in positional and each.default is inspect.Parameter.empty for each in parameters)


def _built(build: Callable[[], Any]) -> ReplayEntry:
    """Call a function that takes nothing, and check what it made."""
    built = guarded_call(build)
    if isinstance(built, Mapping):
        built = (built.get("model"), built.get("optimizer"), built.get("loss_fn"))
    if not (isinstance(built, tuple) and len(built) == 3 and isinstance(built[0], nn.Module) and callable(built[2])):
        raise UsageError(
            "the entry must return (model, optimizer, loss_fn), with loss_fn(batch) giving the loss; "
            "or take the batch and return the loss"
        )
    return ReplayEntry(*built)


def _model_beside(function: Callable[..., Any], state: Mapping[str, Tensor]) -> nn.Module:
    """The model among the variables that a function can see: the one with the names and shapes of the bundle."""
    found: dict[int, tuple[str, nn.Module]] = {}
    others: list[str] = []
    for name, value in _visible(function):
        if not isinstance(value, nn.Module):
            continue
        if _fits(value, state):
            found.setdefault(id(value), (name, value))
        else:
            others.append(name)
    if len(found) > 1:
        found = {key: each for key, each in found.items() if each[0] == "model"} or found
    if len(found) == 1:
        return next(iter(found.values()))[1]
    help_text = "Give a function that takes nothing and returns (model, optimizer, loss_fn)"
    if found:
        names = some_of(sorted(name for name, _ in found.values()), 4)
        raise UsageError(
            f"several models in the entry's module have the parameters of the bundle: {names}. {help_text}"
        )
    seen = f" ({some_of(sorted(set(others)), 4)} has other names or shapes)" if others else ""
    raise UsageError(f"no variable of the entry's module is the model of the bundle{seen}. {help_text}")


def _visible(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Name and value of everything a function can see: its object, its closure, the globals of its module."""
    owner = getattr(function, "__self__", None)
    if owner is not None:
        yield "self", owner
        yield from getattr(owner, "__dict__", {}).items()
        yield from getattr(owner, "_modules", {}).items()
    plain = inspect.unwrap(getattr(function, "__func__", function))
    cells = getattr(plain, "__closure__", None) or ()
    for name, cell in zip(getattr(getattr(plain, "__code__", None), "co_freevars", ()), cells, strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:  # a variable that has no value yet
            continue
    yield from list(getattr(plain, "__globals__", {}).items())


def _fits(model: nn.Module, state: Mapping[str, Tensor]) -> bool:
    named: dict[str, Tensor] = {f"parameter.{name}": p for name, p in model.named_parameters()}
    named |= {f"buffer.{name}": b for name, b in model.named_buffers()}
    wanted = {name for name in state if name.startswith("parameter.")}
    return wanted <= named.keys() and all(n in state and state[n].shape == t.shape for n, t in named.items())


def _groups(names: Any, model: nn.Module) -> list[dict[str, Any]] | None:
    """The parameter groups by name, as the bundle has them; `None` if it does not say."""
    if not isinstance(names, list) or not all(isinstance(group, list) for group in names):
        return None
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if any(name not in parameters for group in names for name in group):
        return None
    return [{"params": [parameters[name] for name in group]} for group in names]


def _torch_optimizer(name: str) -> type[torch.optim.Optimizer] | None:
    """The class, if it is one of PyTorch: nothing else is made from a name in a file."""
    module, _, short = name.rpartition(".")
    kind = getattr(torch.optim, short, None) if module.startswith("torch.optim") else None
    return kind if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) else None


def _words(error: BaseException) -> str:
    return escaped(" ".join(str(error).split()), most=300)
