"""What `nantrap selftest` tries, in the order of the table: single operations, whole runs, processes, cost."""

from __future__ import annotations

import functools
import platform
import time
import warnings
from collections.abc import Callable, Collection
from typing import Final

import torch

from nantrap._version import __version__
from nantrap.doctor.preflight.report import PreflightCheck, PreflightReport
from nantrap.doctor.selftest import costs, operations, processes, runs
from nantrap.doctor.selftest.training import DidNotHold, NotHere, PlainLoopDiffersError
from nantrap.errors import UsageError
from nantrap.locate import RngState

SCHEMA: Final = "nantrap.selftest/1"
SECONDS: Final = 110.0
"""Nothing is begun after this long: the whole test ends within two minutes."""
Check = Callable[[torch.device], str]


def selftest(
    device: str | torch.device | None = None,
    *,
    only: Collection[str] = (),
    on_check: Callable[[PreflightCheck], None] | None = None,
) -> PreflightReport:
    """Try what differs from device to device, in two minutes at most.

    Args:
        device: where; by default the accelerator of this machine, or the CPU.
        only: the checks to make, by their names or the beginning of them; all of them without it.
        on_check: called with each check as soon as it is made.

    Returns:
        A report; `.passed` is true if no check failed.
    """
    chosen = _device(device)
    checks = all_checks()
    if unknown := [name for name in only if not any(check.startswith(name) for check in checks)]:
        raise UsageError(f"no check is called {unknown[0]}; there are: {', '.join(checks)}")
    begin = time.perf_counter()
    streams = RngState.capture()
    made = []
    try:
        for name, check in checks.items():
            if only and not any(name.startswith(each) for each in only):
                continue
            if time.perf_counter() - begin > SECONDS:
                result = PreflightCheck(name, "unjudged", "not tried: the time for the whole test was over")
            else:
                result = _made(name, check, chosen)
            made.append(result)
            if on_check is not None:
                on_check(result)
    finally:
        streams.restore()
    return PreflightReport(str(chosen), machine(chosen), tuple(made), time.perf_counter() - begin, SCHEMA)


def all_checks() -> dict[str, Check]:
    """All checks by name."""
    compared = {name: functools.partial(runs.compared, recipe) for name, recipe in runs.RECIPES.items()}
    return {
        "flags": operations.flags,
        "found_inf": operations.found_inf,
        "restore": operations.restore,
        "late values": operations.late_values,
        "random numbers": operations.random_numbers,
        **compared,
        "run: side stream": runs.side_stream,
        "run: compiled": runs.compiled,
        "run: graphs": runs.graphs,
        "no waiting": runs.no_waiting,
        "diagnosis": runs.diagnosis,
        "rollback": runs.rollback,
        "save and load": runs.save_and_load,
        "several processes": processes.check_ranks,
        "nantrap run": processes.check_script,
        "memory": costs.memory,
        "cost": costs.cost,
    }


def machine(device: torch.device) -> str:
    """What the device is, and which versions run on it."""
    name = platform.processor() or platform.machine()
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        version = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        name = f"{about.name}, {about.total_memory / 2**30:.0f} GiB, {version}, {torch.cuda.device_count()} of them"
    elif device.type != "cpu":
        name = f"an accelerator of type {device.type}"
    return f"nantrap {__version__}, torch {torch.__version__}, Python {platform.python_version()}, {name}"


def _device(given: str | torch.device | None) -> torch.device:
    """The device to try, with its number."""
    try:
        here = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
        device = torch.device(given or here or "cpu")
        if device.type != "cpu":
            device = torch.zeros(1, device=device).device  # with its number
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(f"no device {given} here: {str(error).splitlines()[0]}") from None
    return device


def _made(name: str, check: Check, device: torch.device) -> PreflightCheck:
    """One check, whatever happens in it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return PreflightCheck(name, "ok", check(device))
    except NotHere as reason:
        return PreflightCheck(name, "unjudged", str(reason))
    except PlainLoopDiffersError as found:
        return PreflightCheck(name, "unjudged", f"the loop without a guard gives other bits when made again: {found}")
    except DidNotHold as found:
        return PreflightCheck(name, "error", str(found), "send this table to the project")
    except Exception as error:
        words = (str(error).splitlines() or [""])[0][:200]
        return PreflightCheck(
            name, "error", f"raised {type(error).__name__}: {words}", "send this table to the project"
        )
