"""`%load_ext nantrap` in a real IPython shell: guarded while it is loaded, and torch as it was afterwards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp import GradScaler
from torch.optim.lr_scheduler import LinearLR, LRScheduler, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from nantrap.report.notebook import NotebookPage

interactiveshell = pytest.importorskip("IPython.core.interactiveshell")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

BEFORE = """
import torch
from torch import nn
def make():
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)
def train(model, optimizer, scheduler=None, bad=(2,)):
    for step in range(5):
        optimizer.zero_grad()
        x = torch.ones(4, 3)
        if step in bad:
            x[1, 1] = float("nan")
        model(x).sum().backward()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return all(bool(p.isfinite().all()) for p in model.parameters())
old_model, old = make()
warm = train(old_model, old, bad=())
scheduled_model, scheduled = make()
schedule = torch.optim.lr_scheduler.LinearLR(scheduled, total_iters=20)
"""


class Shell:
    """An IPython shell whose errors are the test's."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self.names = shell.user_ns

    def __call__(self, cell: str) -> Any:
        result = self._shell.run_cell(cell, store_history=False)
        result.raise_error()
        return result.result


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)  # of the shell around the tests, which IPython would warn of
    displayhook, excepthook, main = sys.displayhook, sys.excepthook, sys.modules["__main__"]
    made = interactiveshell.InteractiveShell.instance()
    yield Shell(made)
    made.run_cell("%unload_ext nantrap")
    made.history_manager.end_session()
    interactiveshell.InteractiveShell.clear_instance()
    sys.displayhook, sys.excepthook, sys.modules["__main__"] = displayhook, excepthook, main


def everything() -> dict[str, Any]:
    """What `nantrap` may wrap."""
    owners: list[tuple[Any, tuple[str, ...]]] = [
        (torch, ("save", "load")),
        (torch.serialization, ("save",)),
        (torch.autograd, ("backward", "grad")),
        (torch.Tensor, ("backward",)),
        (torch.nn.utils, ("clip_grad_norm_", "clip_grad_value_")),
        (torch.nn.utils.clip_grad, ("clip_grad_norm_",)),
        (torch.multiprocessing, ("spawn", "start_processes")),
        (sys.modules["torch.multiprocessing.spawn"], ("spawn", "start_processes")),
        (nn.Module, ("__call__", "zero_grad", "load_state_dict")),
        (GradScaler, ("scale", "step", "update", "unscale_")),
        (torch.cuda.amp.GradScaler, ("step", "update")),
        (DataLoader, ("__iter__",)),
        (_BaseDataLoaderIter, ("__next__", "_next_index")),
        (_SingleProcessDataLoaderIter, ("_next_data",)),
        (_MultiProcessingDataLoaderIter, ("_next_data",)),
        (AveragedModel, ("update_parameters",)),
        *((cls, ("__init__", "step", "load_state_dict")) for cls in (LRScheduler, LinearLR, ReduceLROnPlateau)),
        *(
            (cls, ("__init__", "step", "zero_grad", "load_state_dict"))
            for cls in (torch.optim.Optimizer, torch.optim.SGD, torch.optim.AdamW, torch.optim.LBFGS)
        ),
    ]
    return {f"{owner!r}.{name}": vars(owner).get(name) for owner, names in owners for name in names}


def test_a_notebook_is_guarded_from_load_to_unload(
    shell: Shell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for cls in (torch.optim.SGD, torch.optim.AdamW, torch.optim.LBFGS):  # torch itself wraps `step` of a first one
        cls([nn.Parameter(torch.zeros(1))])
    shell(BEFORE)
    before = everything()
    shell("%load_ext nantrap")
    assert capsys.readouterr().err == (
        "nantrap: every optimizer of this notebook is guarded from here on (policy skip); reports go to runs/; "
        "%unload_ext nantrap ends it\n"
    )
    assert {name for name, value in everything().items() if value is not before[name]}
    assert shell("train(old_model, old)") is True, "made and used before"
    assert shell("train(scheduled_model, scheduled, schedule)") is True, "made before, with a schedule"
    shell("new_model, new = make()")
    assert shell("train(new_model, new)") is True, "made after"
    assert shell("schedule.last_epoch") == 4, "one of five was held"
    capsys.readouterr()
    shell("%load_ext nantrap")  # once more: nothing happens
    shell("%unload_ext nantrap")
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == "nantrap: 15 steps, 12 applied (80.0 %), 3 incidents"
    assert shown[-1].startswith("nantrap: report: runs/notebook-")
    changed = [name for name, value in everything().items() if value is not before[name]]
    assert changed == []
    assert shell("train(new_model, new)") is False, "nothing watches any more"
    assert len(list(tmp_path.glob("runs/notebook-*/**/incident.json"))) == 3


def test_it_can_be_loaded_again(shell: Shell, capsys: pytest.CaptureFixture[str]) -> None:
    shell(BEFORE)
    for _ in range(2):
        shell("%load_ext nantrap")
        shell("model, optimizer = make()")
        assert shell("train(model, optimizer)") is True
        capsys.readouterr()
        shell("%unload_ext nantrap")
        assert capsys.readouterr().err.splitlines()[0] == "nantrap: 5 steps, 4 applied (80.0 %), 1 incident"


def test_an_error_in_a_cell_leaves_the_guard_in_place(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NANTRAP_POLICY", "strict")
    monkeypatch.setenv("NANTRAP_QUIET", "1")
    shell(BEFORE)
    shell("%load_ext nantrap")
    shell("model, optimizer = make()")
    with pytest.raises(Exception, match="the policy stops at the first incident"):
        shell("train(model, optimizer)")
    assert shell("all(bool(p.isfinite().all()) for p in model.parameters())") is True
    shell("model, optimizer = make()")
    assert shell("train(model, optimizer, bad=())") is True


FAILING = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 1)
    def forward(self, x):
        return self.inner(x).sum() / x.abs().sum()
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    optimizer.zero_grad()
    model(torch.full((2, 3), float(step != 2))).backward()
    optimizer.step()
"""


def test_a_diagnostic_names_the_cell_and_its_line(
    shell: Shell, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shell("import torch; from torch import nn")
    shell("%load_ext nantrap")
    capsys.readouterr()
    shell(FAILING)
    shown = capsys.readouterr().err
    assert "  --> Cell In[1], line 6 in Net.forward\n" in shown
    assert "6 |         return self.inner(x).sum() / x.abs().sum()\n" in shown
    assert "ipython-input" not in shown
    (path,) = tmp_path.glob("runs/notebook-*/incidents/*/incident.json")
    assert json.loads(path.read_text())["source"]["file"] == "Cell In[1]"


def test_a_real_kernel_shows_cells_and_colours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = pytest.importorskip("jupyter_client")
    pytest.importorskip("ipykernel")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(variable, str(tmp_path))  # of the client and of the kernel: HOME may not be writable
    manager = client.KernelManager(kernel_cmd=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"])
    manager.start_kernel(cwd=str(tmp_path), env=dict(os.environ), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    channels = manager.blocking_client()
    try:
        channels.start_channels()
        channels.wait_for_ready(timeout=120)
        shown: list[str] = []

        def show(message: Any) -> None:
            if message["header"]["msg_type"] == "stream":
                shown.append(message["content"]["text"])

        for cell in ("import torch; from torch import nn", "%load_ext nantrap", FAILING, "%unload_ext nantrap"):
            reply = channels.execute_interactive(cell, timeout=180, output_hook=show)
            assert reply["content"]["status"] == "ok", reply["content"]
    finally:
        channels.stop_channels()
        manager.shutdown_kernel(now=True)
    text = "".join(shown)
    assert text.startswith("nantrap: every optimizer of this notebook is guarded from here on")
    assert "\x1b[1;31merror[NT202]\x1b[0m" in text
    assert "Cell In[3], line 6 in Net.forward" in text
    assert "ipykernel_" not in text
    assert "nantrap: 4 steps, 3 applied (75.0 %), 1 incident" in text


def test_the_example_notebook(shell: Shell, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads((Path(__file__).parents[2] / "examples" / "notebook.ipynb").read_text(encoding="utf-8"))
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    cells = ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == "code"]
    results = [shell(cell) for cell in cells]
    said = capsys.readouterr().err
    assert "nantrap: step 7 skipped; lr 0.01; 1 of 5 in a row\n" in said
    assert "error[NT103]: a quotient over a count of zero\n  --> Cell In[" in said
    assert "nantrap: 20 steps, 19 applied (95.0 %), 1 incident\n" in said
    assert True in results, "the weights are finite"
    assert sum(isinstance(result, NotebookPage) for result in results) == 1
