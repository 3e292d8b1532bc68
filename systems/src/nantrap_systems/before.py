"""What nantrap says of a fault before anything is trained: `nantrap doctor` of the system's code, `nantrap data` of its
batches."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nantrap_systems.system import Fault, Run, System

_BATCHES = 12


def reported_before(
    system: System, fault: Fault, *, seed: int, changes: Mapping[str, Any] | None = None
) -> tuple[str, ...]:
    """The findings that have the fault's code, as the commands print them; none for a fault without one."""
    if fault.code is None:
        return ()
    if fault.reported_by == "doctor":
        return _of_doctor(system, fault.code)
    return _of_data(system.run(fault=fault, changes=changes, seed=seed), fault.code)


def _of_doctor(system: System, code: str) -> tuple[str, ...]:
    """What `nantrap doctor` says about this fault in the system's own folder."""
    from nantrap.doctor.examine import examine
    from nantrap.doctor.report import RISK_OF

    folder = system.config.parent
    return tuple(
        f"`nantrap doctor`: {RISK_OF[each.severity]}[{each.code}] {each.title}: {each.message} "
        f"({os.path.relpath(each.place.file, folder.parent)}:{each.place.line})"
        for each in examine([str(folder)]).findings
        if each.code == code
    )


def _of_data(run: Run, code: str) -> tuple[str, ...]:
    """The batches of the first steps are written as files, as a dataset on disk would be."""
    import torch

    from nantrap.doctor.data import check_data

    with tempfile.TemporaryDirectory(prefix="nantrap-data-") as folder:
        for step in range(_BATCHES):
            for number, batch in enumerate(run.window(step)):
                tensors = {name: value.clone() for name, value in batch._asdict().items()}
                torch.save(tensors, Path(folder, f"batch-{step:03}-{number}.pt"))
        found = check_data(folder).findings
    return tuple(
        f"`nantrap data`: {each.slug}[{each.code}]: {each.field}: {each.message} ({Path(each.file).name})"
        for each in found
        if each.code == code
    )
