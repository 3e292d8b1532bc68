"""`nantrap doctor --install`: versions, devices, memory, extras, and what is missing.

With a factory, as `nantrap preflight` takes it, one step is made, to see whether a batch fits into memory.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any, Final

from nantrap._version import __version__

_REQUIREMENT: Final = re.compile(r"([\w.-]+)>=([\d.]+)(?:; (.*))?")
_BASE: Final = frozenset({"dev", "all"})


@dataclass(frozen=True, slots=True)
class InstallRow:
    """One line: a name, what was found, and what is wrong with it."""

    group: str
    name: str
    found: str
    problem: str = ""
    fix: str = ""


def examine_installation(factory: str = "") -> list[InstallRow]:
    """Everything about this machine and this environment.

    Args:
        factory: `module:function` that makes model and batch; it is run to see whether one batch fits into memory.
    """
    rows = [
        InstallRow("nantrap", "nantrap", __version__),
        InstallRow("nantrap", "python", platform.python_version()),
        InstallRow("nantrap", "platform", f"{platform.system()} {platform.release()} {platform.machine()}"),
    ]
    rows += [_package(name, least) for name, least in _required()]
    rows += _devices()
    rows += [*_memory(), _one_batch(factory)]
    rows += _extras()
    return rows


def as_dict(rows: list[InstallRow]) -> dict[str, Any]:
    """The rows for `--json`."""
    return {
        "schema": "nantrap.doctor.install/1",
        "rows": [asdict(row) for row in rows],
        "missing": [row.name for row in rows if row.problem],
    }


def _declared() -> list[str] | None:
    """What nantrap declares that it needs; `None` if it runs without having been installed."""
    try:
        return metadata.requires("nantrap") or []
    except metadata.PackageNotFoundError:
        return None


def _required() -> list[tuple[str, str]]:
    """The packages that nantrap needs, torch first, each with its oldest version, as the installation declares them."""
    found = [match.groups() for line in _declared() or () if (match := _REQUIREMENT.fullmatch(line))]
    torch = [(name, least) for name, least, _ in found if name == "torch"]
    return [*torch[:1], *((name, least) for name, least, marker in found if marker is None)]


def _package(name: str, least: str) -> InstallRow:
    """The row of one package: its version, and whether that is new enough."""
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        if name == "torch":
            return InstallRow(
                "packages", name, "not installed; only what trains needs it: pip install 'nantrap[torch]'"
            )
        return InstallRow("packages", name, "missing", "not installed", f"pip install '{name}>={least}'")
    if _parts(version) < _parts(least):
        return InstallRow("packages", name, version, f"older than {least}", f"pip install '{name}>={least}'")
    return InstallRow("packages", name, version)


def _parts(version: str) -> tuple[int, ...]:
    numbers = []
    for part in version.split("+")[0].split(".")[:3]:
        digits = "".join(char for char in part if char.isdigit())
        numbers.append(int(digits) if digits else 0)
    return tuple(numbers)


def _devices() -> list[InstallRow]:
    """What torch can run on, and what is wrong with it."""
    if importlib.util.find_spec("torch") is None:
        return []
    try:
        import torch
    except Exception as error:  # a broken installation must not stop the report about it
        return [
            InstallRow("devices", "torch", "does not import", f"{type(error).__name__}: {error}", "reinstall torch")
        ]
    rows = [InstallRow("devices", "cpu", f"{os.cpu_count()} cores, {torch.get_num_threads()} threads")]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(index)
            bf16 = "bf16" if about.major >= 8 else "no bf16: use fp16 with a GradScaler"
            rows.append(
                InstallRow("devices", f"cuda:{index}", f"{about.name}, {about.total_memory / 1e9:.0f} GB, {bf16}")
            )
    elif torch.version.cuda is not None:
        rows.append(
            InstallRow(
                "devices",
                "cuda",
                "not available",
                f"torch is built for CUDA {torch.version.cuda} and sees no GPU",
                "check the driver with nvidia-smi, and CUDA_VISIBLE_DEVICES",
            )
        )
    else:
        rows.append(InstallRow("devices", "cuda", "none: torch is a CPU build"))
    if torch.backends.mps.is_available():
        rows.append(InstallRow("devices", "mps", "available"))
    return rows


def _memory() -> list[InstallRow]:
    """Memory and free disk space."""
    rows = []
    try:
        pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
        rows.append(InstallRow("memory", "memory", f"{pages * size / 1e9:.1f} GB"))
    except (AttributeError, OSError, ValueError):
        pass  # Windows
    usage = shutil.disk_usage(".")
    low = usage.free < 5e9
    rows.append(
        InstallRow(
            "memory",
            "disk",
            f"{usage.free / 1e9:.1f} GB free here",
            "less than 5 GB for checkpoints" if low else "",
            "free some space, or set run_dir to another disk" if low else "",
        )
    )
    return rows


def _one_batch(factory: str) -> InstallRow:
    """Whether one step fits into memory, with a copy of the model, and how much it takes."""
    if not factory:
        return InstallRow("memory", "one batch", "not tried: `nantrap doctor --install MODULE:FACTORY` makes one step")
    import torch

    from nantrap.doctor.preflight.subject import make_subject, try_step

    subject = make_subject(factory, {})
    cuda = subject.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(subject.device)
    before = 0 if cuda else _peak()
    result = try_step(subject, diagnose=False)
    taken = torch.cuda.max_memory_allocated(subject.device) if cuda else _peak() - before
    if not result.error:
        return InstallRow("memory", "one batch", f"fits: one step takes {taken / 1e9:.2f} GB on {subject.device}")
    full = any(words in result.error for words in ("out of memory", "OutOfMemory", "MemoryError", "can't allocate"))
    problem = f"does not fit into the memory of {subject.device}" if full else f"the step fails: {result.error}"
    fix = "halve the batch size and double the accumulation" if full else f"nantrap preflight {factory}"
    return InstallRow("memory", "one batch", "tried", problem, fix)


def _peak() -> int:
    """The most memory that this process has had, in bytes; 0 where the system does not say."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if platform.system() == "Darwin" else most * 1024


def _extras() -> list[InstallRow]:
    """The optional parts and the packages they need."""
    needs = _declared()
    if needs is None:
        return [
            InstallRow("extras", "nantrap", "not installed as a package", "extras are not known", "pip install nantrap")
        ]
    by_extra: dict[str, list[str]] = {}
    for need in needs:
        text, _, condition = need.partition(";")
        if "extra ==" not in condition:
            continue
        extra = condition.split("extra ==")[1].strip().strip("\"'() ")
        package = text.strip()
        for char in "<>=!~[ ":
            package = package.split(char)[0]
        if extra not in _BASE and package and package.lower() != "nantrap":
            by_extra.setdefault(extra, []).append(package)
    rows = []
    for extra, packages in sorted(by_extra.items()):
        missing = [package for package in packages if not _installed(package)]
        found = "installed" if not missing else f"not installed: {', '.join(missing)} (pip install 'nantrap[{extra}]')"
        rows.append(InstallRow("extras", extra, found))
    return rows


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
