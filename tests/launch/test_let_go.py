"""At the end of `nantrap run` nothing of the script is held: a group of ranks ends with its last model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
