"""`nantrap.replay`: an incident's bundle run again, here, and compared with what happened there."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nantrap.errors import FormatError, UsageError
from nantrap.finite import any_nonfinite, tensor_stats
from nantrap.guard.guard import Guard
from nantrap.guard.policy import Policy
from nantrap.incident import Incident, TensorStats
from nantrap.incident.wording import escaped
from nantrap.locate import RngState
from nantrap.locate.pure_operations import pure_operation
from nantrap.locate.storage import map_leaves
from nantrap.record import Bundle, read_bundle
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


def replay(
    bundle: str | os.PathLike[str],
    *,
    entry: str | Callable[[], Any] | None = None,
    fp32: bool = False,
    device: str = "cpu",
) -> ReplayResult:
    """Run an incident again from its bundle. Nothing is ever unpickled.

    Args:
        bundle: the folder of an incident (`runs/exp1/incidents/001204-r0`).
        entry: how to build the user's code, as `module:function` or a function: it returns model, optimizer and a
            function from batch to loss. Without it only the guilty operation is run, on its recorded inputs.
        fp32: widen everything to float32, to see whether precision is to blame.
        device: where to run.
    """
    read = read_bundle(bundle)
    if entry is not None:
        return _replay_step(read, _entry(entry), fp32=fp32, device=device)
    if "origin" in read.values and "origin.safetensors" in read.files:
        return _replay_operation(read, fp32=fp32, device=device)
    reason = (
        "the bundle is light and holds no tensors; Policy(bundle='full') keeps them"
        if read.kind == "light"
        else "without entry= only the guilty operation could be run, and its inputs were not kept "
        "(Policy(bundle_data=True) allows data in a bundle)"
    )
    return ReplayResult(None, "none", read.incident, differences=(reason,))


def _replay_step(read: Bundle, build: Callable[[], Any], *, fp32: bool, device: str) -> ReplayResult:
    state, batch_tensors = read.tensors("state"), read.tensors("batch")
    if not state or "batch" not in read.values:
        raise UsageError(
            f"{read.path}: the whole step needs the state and the batch; this bundle has no "
            f"{'state' if not state else 'batch'}. Policy(bundle='full', bundle_data=True) keeps both"
        )
    model, optimizer, loss_fn = _built(build)
    model.to(device)
    _load_model(model, state)
    optimizer.load_state_dict(unflatten(read.values["optimizer"], state))
    batch = _moved(unflatten(read.values["batch"], batch_tensors), device)
    if fp32:
        model.float()
        batch = _widened(batch)
    policy = Policy(on_incident="skip", anchor_every=0, bundle="off")
    with Guard(model, optimizer, max_grad_norm=None, policy=policy, quiet=True) as guard:
        _restore_rng(read.values.get("rng"))
        outcome = guard.attempt(loss_fn, batch)
    incident = outcome.incident
    return ReplayResult(
        incident is not None, "step", read.incident, incident, differences=_differences(read.incident, incident)
    )


def _replay_operation(read: Bundle, *, fp32: bool, device: str) -> ReplayResult:
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


def _entry(entry: str | Callable[[], Any]) -> Callable[[], Any]:
    if callable(entry):
        return entry
    module_name, _, function_name = entry.partition(":")
    if not function_name:
        raise UsageError(f"--entry {entry}: write it as module:function, e.g. train:build")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise UsageError(f"--entry {entry}: {module_name} cannot be imported: {error}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise UsageError(f"--entry {entry}: {module_name} has no function {function_name!r}")
    return function  # type: ignore[no-any-return]


def _built(build: Callable[[], Any]) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[Any], Any]]:
    built = build()
    if isinstance(built, Mapping):
        built = (built.get("model"), built.get("optimizer"), built.get("loss_fn"))
    if not (isinstance(built, tuple) and len(built) == 3 and isinstance(built[0], nn.Module) and callable(built[2])):
        raise UsageError("the entry must return (model, optimizer, loss_fn), with loss_fn(batch) giving the loss")
    return built


def _load_model(model: nn.Module, state: Mapping[str, Tensor]) -> None:
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


def _restore_rng(described: Any) -> None:
    if not described:
        return
    python, numpy = described["python"], described["numpy"]
    RngState(
        torch.tensor(described["torch_cpu"], dtype=torch.uint8),
        tuple(torch.tensor(device, dtype=torch.uint8) for device in described["torch_cuda"])
        if torch.cuda.is_available()
        else (),
        (python[0], tuple(python[1]), python[2]),
        (numpy[0], np.array(numpy[1], dtype=np.uint32), numpy[2], numpy[3], numpy[4]),
    ).restore()


def _moved(value: Any, device: str) -> Any:
    return map_leaves(value, lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf)


def _widened(value: Any) -> Any:
    def widen(leaf: Any) -> Any:
        half = isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.element_size() < 4
        return leaf.float() if half else leaf

    return map_leaves(value, widen)


def _differences(recorded: Incident, now: Incident | None) -> tuple[str, ...]:
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
