"""The commands of pages that keep running or start several processes: served and asked, launched on two ranks.

A server takes a free port instead of the one that its page names. Ranks are two, whatever number the page names, and
find each other at a free port. Everything else is as the page has it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from docs.test_code_blocks import ROOT
from docs.test_console_blocks import EVERY
from report.runs import usual_run

TIMEOUT = 600
SERVES = [command for _, command, _ in EVERY if command.startswith("nantrap serve ")]
LAUNCHES = [command for _, command, _ in EVERY if command.startswith("torchrun ")]
DEMOS = [command for _, command, _ in EVERY if command.startswith("nantrap demo ")]
BENCHMARKS = sorted({command for _, command, _ in EVERY if command.startswith("python benchmarks/")})
DDP = ROOT / "tests" / "launch" / "scripts" / "ddp.py"


def asked(address: str) -> tuple[int, str]:
    """The status and the text of one answer, with the cookies of a new visitor."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor())
    try:
        with opener.open(address, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def environment(folder: Path) -> dict[str, str]:
    """That of this process, where `nantrap` and `torchrun` are found and the user's own cache is not touched."""
    scripts = str(Path(sys.executable).parent)
    changed = {
        "PATH": os.pathsep.join((scripts, os.environ.get("PATH", ""))),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
    }
    return {**os.environ, **changed}


@pytest.mark.parametrize("command", SERVES)
def test_a_server_is_started_asked_and_stopped(command: str, tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    run = usual_run(tmp_path / "runs" / "exp1")
    words = [*shlex.split(command, comments=True)[1:], "--port", "0"]
    with subprocess.Popen(
        [sys.executable, "-m", "nantrap", *words],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            printed = server.stdout.readline().strip().replace("0.0.0.0", "127.0.0.1")
            address, _, token = printed.partition("?token=")
            status, page = asked(printed)
            assert (status, run.name in page) == (200, True)
            if "--host" in words:
                assert len(token) >= 24
                assert asked(address)[0] == 401, "without the token"
            else:
                assert token == ""
                assert f'nantrap_step{{run="{run.name}"' in asked(f"{address}metrics")[1]
        finally:
            server.send_signal(signal.SIGINT)
            _, said = server.communicate(timeout=60)
    assert server.returncode == 0, said
    assert "read-only; press Ctrl-C to stop" in said
    assert "Traceback" not in said


@pytest.mark.slow
@pytest.mark.parametrize("command", sorted(set(LAUNCHES)))
def test_a_launcher_starts_two_ranks(command: str, tmp_path: Path) -> None:
    """`train.py` is a script with averaged gradients whose rank 1 has a bad sample; the checkpoint has two shards."""
    shutil.copy(DDP, tmp_path / "train.py")
    shards = tmp_path / "step_9000"
    shards.mkdir()
    for number in (1, 2):
        weight = torch.full((4, 4), 1.0 if number == 1 else torch.nan)
        save_file({f"layer.{number}.weight": weight}, shards / f"model-{number:05d}-of-00002.safetensors")
    command = re.sub(r"--nproc-per-node \d+", "--standalone --nproc-per-node 2", command)
    words = shlex.split(command.replace("/scratch/run/step_9000", shlex.quote(str(shards))))
    if words[-1] == "train.py":
        words += ["--bad", "5"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words[1:]],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT,
        check=False,
    )
    if "audit" in words:
        assert "layer.2.weight: 16 of 16 values are NaN" in done.stderr
        assert done.stderr.count("1 checkpoint read: 0 healthy, 1 not") == 1, "rank 0 alone reports"
        assert re.findall(r"local_rank: (\d+)", done.stderr.partition("Root Cause")[2]) == ["0"], done.stderr
        assert done.returncode != 0
    else:
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("4 steps, 3 applied (75.0 %), 1 incident") == 1


@pytest.mark.slow
@pytest.mark.parametrize("command", DEMOS)
def test_a_demo_ends_with_its_report(command: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)],
        cwd=tmp_path,
        env={**environment(tmp_path), "TMPDIR": str(tmp_path)},
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("report: ")
    assert Path(last.removeprefix("report: ")).read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.slow
@pytest.mark.parametrize("command", BENCHMARKS)
def test_options_of_a_benchmark_exist(command: str) -> None:
    """Benchmarks take minutes, and two of them read other people's programs, so the options alone are tried."""
    _, script, *words = shlex.split(command)
    done = subprocess.run(
        [sys.executable, script, "--help"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for word in words:
        if word.startswith("--"):
            assert f"{word} " in done.stdout
