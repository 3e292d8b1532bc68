"""The device `sim` in Python: built once, registered with PyTorch, and its counters.

`start()` compiles the C++ files of this folder (half a minute, once; the result is kept under `build/`), and makes
`sim` a device of this process. Where that is not possible, `why_not()` says so in words.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from filelock import FileLock
from torch.library import Library
from torch.utils import cpp_extension

from device import recurrent

_HERE = Path(__file__).resolve().parent
_BUILD = _HERE.parents[1] / "build" / "device"
_SOURCES = ("clock.h", "memory.h", "device.cpp")
DEVICES = 2
_library_of_python = Library("aten", "IMPL")


def why_not() -> str:
    """Why there can be no simulated device here; empty if there can be one."""
    if torch._C._get_privateuse1_backend_name() not in ("sim", "privateuseone"):
        return "another backend has taken PyTorch's place for a device of its own"
    if not _library().exists() and shutil.which(cpp_extension.get_cxx_compiler()) is None:
        return f"the simulated device is made of C++, and there is no compiler ({cpp_extension.get_cxx_compiler()})"
    return ""


@functools.cache
def start() -> ModuleType:
    """Build the device if need be, and make it a device of this process. Returns `torch.sim`."""
    library = _library()
    with FileLock(str(_BUILD) + ".lock"):
        if not library.exists():
            _compile(library)
    torch.ops.load_library(library)
    torch.ops.sim.begin()
    torch.utils.rename_privateuse1_backend("sim")
    module = _device_module()
    torch._register_device_module("sim", module)
    # a module of a program may have a part named `sim`
    torch.utils.generate_methods_for_privateuse1_backend(for_module=False)
    recurrent.register(_library_of_python)
    return module


def _library() -> Path:
    """Where the compiled device is: its name says of which sources, and for which version of torch."""
    _BUILD.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(torch.__version__.encode())
    for name in _SOURCES:
        digest.update((_HERE / name).read_bytes())
    return _BUILD / f"sim-{digest.hexdigest()[:16]}.so"


def _compile(library: Path) -> None:
    """Compile by the compiler itself: one file needs no build system."""
    includes = [f"-I{path}" for path in cpp_extension.include_paths()]
    paths = cpp_extension.library_paths()
    links = [f"-L{path}" for path in paths] + [f"-Wl,-rpath,{path}" for path in paths]
    unfinished = library.with_suffix(".unfinished")
    command = [
        cpp_extension.get_cxx_compiler(), "-O1", "-w", "-shared", "-fPIC", "-std=c++20", *includes, *links,
        str(_HERE / "device.cpp"), "-o", str(unfinished), "-lc10", "-ltorch_cpu",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise RuntimeError(f"the simulated device did not compile:\n{done.stderr[-4000:]}")
    for old in _BUILD.glob("sim-*.so"):
        old.unlink()
    unfinished.rename(library)


def _device_module() -> ModuleType:
    """What PyTorch and programs ask `torch.sim`, in the words of `torch.cuda`."""
    module = ModuleType("torch.sim")
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "_lazy_init": lambda: None,
        "device_count": lambda: DEVICES,
        "current_device": torch.accelerator.current_device_index,
        "device": lambda device: torch.accelerator.device_index(_index(device)),
        "set_device": torch.accelerator.set_device_index,
        "synchronize": torch.accelerator.synchronize,
        "current_stream": torch.accelerator.current_stream,
        "Stream": lambda device="sim", **options: torch.Stream(device=device, **options),
        "Event": lambda **options: torch.Event(device="sim", **options),
        "get_amp_supported_dtype": lambda: [torch.float16, torch.bfloat16],
        "is_autocast_enabled": lambda: torch.is_autocast_enabled("sim"),
        "get_rng_state": lambda device="sim": torch.ops.sim.rng_state(_index(device)),
        "set_rng_state": lambda state, device="sim": torch.ops.sim.set_rng_state(_index(device), state),
        "get_rng_state_all": lambda: [torch.ops.sim.rng_state(i) for i in range(DEVICES)],
        "set_rng_state_all": lambda states: [torch.ops.sim.set_rng_state(i, s) for i, s in enumerate(states)] and None,
        "manual_seed": lambda seed: torch.ops.sim.seed(torch.accelerator.current_device_index(), seed),
        "manual_seed_all": lambda seed: [torch.ops.sim.seed(i, seed) for i in range(DEVICES)] and None,
        "memory_allocated": torch.accelerator.memory_allocated,
        "max_memory_allocated": torch.accelerator.max_memory_allocated,
        "reset_peak_memory_stats": torch.accelerator.reset_peak_memory_stats,
        "get_device_properties": lambda device="sim": None,
        "empty_cache": lambda: None,
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": lambda mode: torch.ops.sim.refuse_waits(mode in ("error", 2)),
    }  # fmt: skip
    vars(module).update(answers)
    return module


def _index(device: Any) -> int:
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return torch.accelerator.current_device_index() if index is None else index


# ---- counters and clock


@dataclass(frozen=True, slots=True)
class Counts:
    """What the device did since the last reset.

    Attributes:
        event_waits: how often the host stopped for an event that had not happened yet.
        copies_async: copies to pinned memory that the host did not wait for.
        copies_to_host: copies to the host, of any kind.
        copies_to_device: copies to the device, of any kind.
        bytes_moved: bytes of all copies.
        allocations: blocks of memory that were handed out.
        host_us: the virtual time of the host.
        device_us: the virtual time at which the device has done everything that was queued.
        idle_us: for how long the device waited for the host.
        launches: kernels by operation.
        waits: blocking reads by operation: the host stopped until everything queued so far had ended.
    """

    event_waits: int
    copies_async: int
    copies_to_host: int
    copies_to_device: int
    bytes_moved: int
    allocations: int
    host_us: float
    device_us: float
    idle_us: float
    launches: dict[str, int]
    waits: dict[str, int]

    @property
    def blocking_reads(self) -> int:
        """How often the host stopped until the queue was empty."""
        return sum(self.waits.values())

    @property
    def kernels(self) -> int:
        """Launches of all operations."""
        return sum(self.launches.values())

    @property
    def makespan_us(self) -> float:
        """When host and device both are done."""
        return max(self.host_us, self.device_us)


def counts() -> Counts:
    """What was counted since the last reset."""
    numbers = torch.ops.sim.numbers()
    whole = map(int, numbers[:6])
    launches, waits = (dict(torch.ops.sim.by_operation(each).items()) for each in (False, True))
    return Counts(*whole, *numbers[6:], launches, waits)


@contextlib.contextmanager
def counted() -> Iterator[list[Counts]]:
    """Count what runs inside; the list holds the result afterwards."""
    torch.ops.sim.reset()
    result: list[Counts] = []
    yield result
    result.append(counts())
