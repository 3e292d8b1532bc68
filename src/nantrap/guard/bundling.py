"""What goes into an incident's bundle: enough to run the failed step again on another machine."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from torch import Tensor

from nantrap.guard.policy import Policy
from nantrap.incident import Incident
from nantrap.locate import FailedStep, Location, RngState
from nantrap.record import Material, write_bundle
from nantrap.record.structure import flatten
from nantrap.report import render_incident


def bundle_incident(
    run_dir: str | os.PathLike[str], incident: Incident, failed: FailedStep, location: Location, policy: Policy
) -> Incident:
    """Write the bundle and return the incident that knows its place. A full disk is noted, never raised."""
    if policy.bundle == "off":
        return incident
    material = None
    if policy.bundle == "full":
        material = _material(failed, location, data=policy.bundle_data, limit_bytes=policy.bundle_bytes)
        if material.nbytes > policy.bundle_bytes:
            note = f"the bundle would take {material.nbytes:,} bytes, more than bundle_bytes: written without the state"
            incident, material = replace(incident, notes=(*incident.notes, note)), None
    try:
        path = write_bundle(
            run_dir, incident, text=render_incident(incident), material=material, most=policy.max_bundles
        )
    except OSError as error:
        return replace(incident, notes=(*incident.notes, f"the bundle could not be written: {error.strerror or error}"))
    return replace(incident, bundle=os.fspath(path))


def _material(failed: FailedStep, location: Location, *, data: bool, limit_bytes: int) -> Material:
    material = Material()
    with failed.rewound():
        state: dict[str, Tensor] = {f"parameter.{name}": p.detach() for name, p in failed.parameters.items()}
        state |= {f"buffer.{name}": b.detach() for name, b in failed.root.named_buffers()}
        optimizer = flatten(failed.optimizer.state_dict(), state, "optimizer")
        material.tensors["state"] = state
        if material.nbytes <= limit_bytes:  # else it is not written, and need not be copied
            material.tensors["state"] = {name: tensor.clone() for name, tensor in state.items()}
    material.values = {
        "model": f"{type(failed.root).__module__}.{type(failed.root).__qualname__}",
        "optimizer_class": f"{type(failed.optimizer).__module__}.{type(failed.optimizer).__qualname__}",
        "optimizer": optimizer,
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
    if data:
        batch: dict[str, Tensor] = {}
        material.values["batch"] = flatten(failed.batch, batch, "batch")
        material.tensors["batch"] = batch
    return material


def _rng(state: RngState | None) -> Any:
    if state is None:
        return None
    kind, keys, position, has_gauss, cached = state.numpy
    return {
        "torch_cpu": state.torch_cpu.tolist(),
        "torch_cuda": [device.tolist() for device in state.torch_cuda],
        "python": [state.python[0], list(state.python[1]), state.python[2]],
        "numpy": [kind, keys.tolist(), int(position), int(has_gauss), float(cached)],
    }
