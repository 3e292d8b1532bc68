"""No file that runs code when torch loads it is called healthy: tried with torch itself, in child processes."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from checkpoints.audit.attacks import REFUSED_BY_TORCH, attacks
from nantrap.checkpoints.audit import audit

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="loads in forked children")


def left_by(folder: Path, *, seconds: int = 20) -> dict[str, list[str]]:
    """What `torch.load(weights_only=False)` of each file makes in an empty folder."""
    program = Path(__file__).with_name("loading.py")
    command = [sys.executable, str(program), str(folder), str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=7000, check=True)
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def mutated(raw: bytes, dice: random.Random) -> bytes:
    """A few bytes changed, taken out, doubled or put in: opcodes, protocols, lengths."""
    data = bytearray(raw)
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(data))
        kind = dice.randrange(4)
        if kind == 0:
            data[at] ^= 1 << dice.randrange(8)
        elif kind == 1:
            data[at:at] = dice.choice(
                [b"0", b"N", b"\x80\x02", b"\x80\x04", b"(", b")", b"\x94", b"2", b"}", b"]", b"b"]
            )
        elif kind == 2 and len(data) > 8:
            del data[at : at + dice.randint(1, 2)]
        else:
            data[at:at] = data[at : at + dice.randint(1, 12)]
    return bytes(data)


def test_every_attack_is_real_and_is_found(tmp_path: Path) -> None:
    names = {}
    for number, (name, raw) in enumerate(attacks().items()):
        names[f"{number:03d}.pt"] = name
        (tmp_path / f"{number:03d}.pt").write_bytes(raw)
    made = left_by(tmp_path)
    for file, name in names.items():
        assert "marker" in made[file] or name.endswith(REFUSED_BY_TORCH), name
        report = audit(tmp_path / file)
        assert not report.healthy, name
        assert "NT910" in {problem.code for problem in report.problems}, name


@pytest.mark.parametrize("count", [60, pytest.param(3000, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])])
def test_no_mutation_of_an_attack_is_called_healthy(tmp_path: Path, count: int) -> None:
    dice = random.Random(17)
    seeds = [raw for name, raw in attacks().items() if name.startswith(("plain", "old"))]
    for number in range(count):
        (tmp_path / f"{number:05d}.pt").write_bytes(mutated(dice.choice(seeds), dice))
    made = left_by(tmp_path, seconds=5)
    ran = [file for file, names in made.items() if names]
    assert len(ran) > count // 30  # else the test shows nothing
    for file in ran:
        assert not audit(tmp_path / file).healthy, (file, (tmp_path / file).read_bytes())
