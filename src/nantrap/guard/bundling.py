"""What goes into an incident's bundle: enough to run the failed step again on another machine."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from torch import Tensor

from nantrap.guard.policy import Policy
from nantrap.guard.state.copies import copied
from nantrap.guard.window import Diagnosed
from nantrap.incident import Incident
from nantrap.locate import Failure, Location, RngState
from nantrap.record import Material, write_bundle
from nantrap.record.structure import flatten
from nantrap.report import render_incident, write_page_later


def write_incident(
    run_dir: str | os.PathLike[str], incident: Incident, diagnosed: Diagnosed, policy: Policy
) -> Incident:
    """Write the bundle of a final incident and return the incident with its place. A full disk is noted, not raised."""
    if policy.bundle.kind == "off" or not diagnosed.worth_a_bundle:
        return incident
    try:
        path = write_bundle(
            run_dir, incident, text=render_incident(incident), material=diagnosed.material, most=policy.bundle.most
        )
    except OSError as error:
        return replace(incident, notes=(*incident.notes, f"the bundle could not be written: {error.strerror or error}"))
    except Exception as error:  # a tensor that the format cannot hold: sparse, quantised, of a class with own errors
        if diagnosed.material is None:
            raise
        said = str(error).partition("\n")[0]
        note = f"the bundle has no state: its format cannot hold a tensor of it ({said:.200})"
        with_note = replace(incident, notes=(*incident.notes, note))
        return write_incident(run_dir, with_note, replace(diagnosed, material=None), policy)
    write_page_later(path)
    return replace(incident, bundle=os.fspath(path))


def material_of(
    failed: Failure, location: Location, *, data: bool, batch: Any, limit_bytes: int
) -> tuple[Material | None, str]:
    """What a replay needs, copied before the state changes; `None` and the reason if it is too large.

    Args:
        failed: the step.
        location: where it began.
        data: whether data may be written.
        batch: what a function of the program can be called with: it was given to `guard.attempt`, or a data loader gave
            it; `None` if it is not known.
        limit_bytes: the largest bundle.
    """
    material = _material(failed, location, data=data, batch=batch, limit_bytes=limit_bytes)
    if material.nbytes > limit_bytes:
        size = f"the bundle would take {material.nbytes:,} bytes, more than Bundle(max_bytes={limit_bytes:,})"
        return None, f"{size}: written without the state"
    return material, ""


def _material(failed: Failure, location: Location, *, data: bool, batch: Any, limit_bytes: int) -> Material:
    """The state before the step, its random streams and, if data may be kept, the batch and the operation's inputs."""
    material = Material()
    with failed.rewound():
        state: dict[str, Tensor] = {f"parameter.{name}": p.detach() for name, p in failed.parameters.items()}
        state |= {f"buffer.{name}": b.detach() for name, b in failed.root.named_buffers()}
        optimizer = flatten(failed.optimizer.state_dict(), state, "optimizer")
        material.tensors["state"] = state
        if material.nbytes <= limit_bytes:  # otherwise it is not written and need not be copied
            material.tensors["state"] = {name: copied(tensor) for name, tensor in state.items()}
    names = {id(parameter): name for name, parameter in failed.parameters.items()}
    material.values = {
        "model": f"{type(failed.root).__module__}.{type(failed.root).__qualname__}",
        "optimizer_class": f"{type(failed.optimizer).__module__}.{type(failed.optimizer).__qualname__}",
        "optimizer": optimizer,
        "optimizer_parameters": [
            [names.get(id(p)) for p in group["params"]] for group in failed.optimizer.param_groups
        ],
        "loss": flatten(failed.loss_value, {}, ""),
        "loss_factor": failed.loss_factor,
        "rng": _rng(failed.rng or (failed.root_call.rng if failed.root_call else None)),
    }
    if location.capture is not None:
        origin: dict[str, Tensor] = {}
        capture = location.capture
        material.values["origin"] = {
            "op": str(capture.func),
            "args": flatten(capture.args, origin, "args"),
            "kwargs": flatten(capture.kwargs, origin, "kwargs"),
        }
        if data or location.phase == "optimizer":  # activations show the data they were made from
            material.tensors["origin"] = origin
    if data and batch is not None and not (isinstance(batch, tuple) and not batch):
        tensors: dict[str, Tensor] = {}
        material.values["batch"] = flatten(batch, tensors, "batch")
        material.tensors["batch"] = tensors
    return material


def _rng(state: RngState | None) -> Any:
    """The random streams as plain values. A generator of NumPy that is not its usual one is left out."""
    if state is None:
        return None
    numpy = None
    if not isinstance(state.numpy, dict):
        kind, keys, position, has_gauss, cached = state.numpy
        numpy = [kind, keys.tolist(), int(position), int(has_gauss), float(cached)]
    return {
        "torch_cpu": state.torch_cpu.tolist(),
        "torch_cuda": [device.tolist() for device in state.torch_devices],
        "python": [state.python[0], list(state.python[1]), state.python[2]],
        "numpy": numpy,
    }
