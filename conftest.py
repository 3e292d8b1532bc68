"""Every test runs on one thread, or on NANTRAP_TEST_THREADS, from the same seed, and leaves torch as it was."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import hypothesis
import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

# Under nohup, or in the background of a script, Ctrl-C is ignored, and every child inherits that: the tests that
# interrupt a child would never end. A handler of our own is reset to the default in each child.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests read what a diagnostic says in full; those of its brief form unset this.
os.environ.setdefault("NANTRAP_VERBOSE", "1")
torch.set_num_threads(int(os.environ.get("NANTRAP_TEST_THREADS", "1")))
# torch warns once, in whichever test comes first, unless it is disabled
torch.sparse.check_sparse_tensor_invariants.disable()
# derandomize: a red test is red again tomorrow; no limit of time: the machine may be busy
hypothesis.settings.register_profile(
    "nantrap",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize=True,
    database=None,
    max_examples=60,
    print_blob=False,
)
hypothesis.settings.load_profile("nantrap")


@pytest.fixture(autouse=True)
def _same_start_and_end() -> Iterator[None]:
    torch.manual_seed(0)
    folder, settings, main = os.getcwd(), dict(os.environ), sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main  # a script that was run in this process would run again in each one it spawns
    torch.set_default_dtype(torch.float32)
    if _get_current_dispatch_mode_stack():  # of a guard that was not closed: it ends when the guard is collected
        gc.collect()
        importlib.import_module("nantrap.guard.armed").end_unfinished()
    assert not _get_current_dispatch_mode_stack(), "this test leaves a trace running, which the next ones would meet"
    assert not list(_still_wrapped()), "this test leaves functions of PyTorch wrapped, which the next ones would call"
    assert os.getcwd() == folder
    assert {name for name, value in settings.items() if os.environ.get(name) != value} <= _SET_BY_PYTEST


_SET_BY_PYTEST = {"PYTEST_CURRENT_TEST"}
_REPLACED = {torch: ("save", "load"), torch.nn.utils: ("clip_grad_norm_",), torch.Tensor: ("backward",)}


def _still_wrapped() -> Iterator[str]:
    """The functions of PyTorch that an attachment replaced and did not put back, also where a test imported them."""
    owners = [(owner, name) for owner, names in _REPLACED.items() for name in names]
    owners += [
        (module, "save_file") for module in list(sys.modules.values()) if "save_file" in getattr(module, "__dict__", ())
    ]
    for owner, name in owners:
        code = getattr(getattr(owner, name), "__code__", None)
        if code is not None and str(Path("nantrap", "launch")) in code.co_filename:
            yield f"{owner!r}.{name}"


@pytest.fixture(scope="session")
def load_benchmark() -> Callable[[str], ModuleType]:
    """`benchmarks/NAME.py` as a module: the rules of judgement are the benchmark's."""
    folder = Path(__file__).resolve().parent / "benchmarks"

    def load(name: str) -> ModuleType:
        if str(folder) not in sys.path:
            sys.path.append(str(folder))  # what the benchmarks share is there; `launch` of the tests comes first
        spec = importlib.util.spec_from_file_location(f"benchmark_{name}", folder / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[f"benchmark_{name}"] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture
def graph_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss cannot be computed again from its source: the two-line form has its graph and the model's calls only."""
    monkeypatch.setattr(importlib.import_module("nantrap.locate.locate"), "compute_again", lambda *_: None)
