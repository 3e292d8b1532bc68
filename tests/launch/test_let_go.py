"""At the end nothing of the script is held, and no function stays wrapped, whoever imported it and when."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn

from nantrap.launch.attach import Attachment, attached
from nantrap.launch.settings import RunSettings

SCRIPT = """
import os, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def main():
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(4):
        x = torch.randn(8, 4)
        if step == 2:
            x[1] = float("nan")
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

dist.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meeting", rank=0, world_size=1)
main()
dist.destroy_process_group()
"""
AROUND = """
import gc, sys
import nantrap.cli
code = nantrap.cli.main(["run", "script.py"])
from torch.nn.parallel import DistributedDataParallel
print("left:", sum(type(thing) is DistributedDataParallel for thing in gc.get_objects()), "code:", code)
"""


def test_no_model_is_left_when_a_run_has_ended(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", AROUND], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert "step 2 skipped" in ended.stderr
    assert ended.stdout.splitlines()[-1] == "left: 0 code: 0", ended.stderr


def test_a_function_that_was_imported_before_is_as_before_once_detached(tmp_path: Path) -> None:
    """`save_file` of this module is replaced while the attachment lives, and by `detach` alone it is restored."""
    original = save_file
    attachment = Attachment(RunSettings(run_dir=str(tmp_path / "run"), quiet=True))
    attachment.enter_living()
    assert save_file is not original
    attachment.detach()
    assert save_file is original
    assert save_file is safetensors.torch.save_file


def test_a_function_that_was_imported_meanwhile_saves_where_it_is_told_once_detached(tmp_path: Path) -> None:
    bad = {"weight": torch.full((2, 4), torch.nan)}
    with attached(RunSettings(run_dir=str(tmp_path / "run"), quiet=True)):
        from safetensors.torch import save_file as imported_meanwhile

        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
        imported_meanwhile(model.state_dict(), tmp_path / "during.safetensors")
        imported_meanwhile(bad, tmp_path / "during.safetensors")
    imported_meanwhile(bad, tmp_path / "after.safetensors")
    names = sorted(file.name for file in tmp_path.glob("*.safetensors"))
    assert names == ["after.safetensors", "during.nonfinite.safetensors", "during.safetensors"]


def test_a_group_ends_only_after_its_thread_could_let_go_of_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread needs the GIL, and this one would not give it away by itself."""
    done: list[str] = []
    may_go = threading.Lock()
    may_go.acquire()

    def let_go() -> None:
        with may_go:
            done.append("the tensors are let go of")

    monkeypatch.setattr(dist, "destroy_process_group", lambda: done.append("the group has ended"))
    thread = threading.Thread(target=let_go)
    before = sys.getswitchinterval()
    with attached(RunSettings(run_dir=str(tmp_path), quiet=True)):
        thread.start()
        try:
            sys.setswitchinterval(100.0)
            may_go.release()
            dist.destroy_process_group()
        finally:
            sys.setswitchinterval(before)
    thread.join(60)
    assert done == ["the tensors are let go of", "the group has ended"]
