"""Two real processes share the files of a checkpoint and agree on the result."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from nantrap.checkpoints.audit.auditing import AuditTeam


@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(1, 5))
def test_every_file_is_read_by_exactly_one_rank(weights: list[int], size: int) -> None:
    shares = [AuditTeam(rank, size).share(weights) for rank in range(size)]
    assert sorted(position for share in shares for position in share) == list(range(len(weights)))
    if weights:
        loads = [sum(weights[position] + 1 for position in share) for share in shares]
        assert max(loads) - min(loads) <= max(weights) + 1


SCRIPT = """if True:
    import json, sys
    from nantrap.checkpoints.audit import Progress, audit
    from nantrap.checkpoints.audit.auditing import ranks_of_environment
    read = []
    with ranks_of_environment() as ranks:
        try:
            report = audit(sys.argv[1], ranks=ranks, progress=Progress(on_bytes=read.append)).to_dict()
        except Exception as error:
            report = repr(error)
        print(json.dumps([ranks.rank, ranks.size, sum(read), report]))
"""


def run_two(path: Path) -> list[list[object]]:
    # As under torchrun, the meeting point belongs to the parent. A free port that is only looked up can be taken by
    # another process before rank 0 opens it; then both ranks wait.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(path)],
            env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    return [json.loads(output.splitlines()[-1]) for output in outputs]


def test_two_processes(tmp_path: Path) -> None:
    for number in range(1, 5):
        weight = torch.randn(100, 100)
        weight[number, 0] = torch.nan if number == 3 else 0.0
        save_file({f"layer.{number}.weight": weight}, tmp_path / f"model-{number:05d}-of-00004.safetensors")
    first, second = run_two(tmp_path)
    assert (first[:2], second[:2]) == ([0, 2], [1, 2])
    assert first[2] == second[2]  # equal shares
    assert first[3] == second[3]
    report = first[3]
    assert isinstance(report, dict)
    checkpoint = report["checkpoints"][0]
    assert (checkpoint["healthy"], checkpoint["tensors"]) == (False, 4)
    assert [(p["tensor"], p["first_index"]) for p in checkpoint["problems"]] == [("layer.3.weight", [3, 0])]
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert first[2] + second[2] == size  # type: ignore[operator]


def test_two_processes_fail_together(tmp_path: Path) -> None:
    first, second = run_two(tmp_path / "nothing")
    assert first[3] == second[3]
    assert "does not exist; give a file" in str(first[3])
