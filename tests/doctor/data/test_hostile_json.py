"""JSON lines that would end the process or fill the memory are refused with words."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nantrap.doctor.data.readers.json_lines import MOST_NAMES


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param('{"a":' + "[" * 100_000 + "]" * 100_000 + "}\n", "no line is a JSON value", id="lists"),
        pytest.param('{"a":' * 100_000 + "1" + "}" * 100_000 + "\n", "were not read", id="objects"),
        pytest.param('{"a":' + '["]]]]",' * 50_000 + "1" + "]" * 50_000 + "}\n", "no line is a JSON", id="text"),
        pytest.param(
            json.dumps({f"k{n}": 1.0 for n in range(MOST_NAMES + 1)}) + "\n",
            "more than 10,000 different keys",
            id="wide",
        ),
        pytest.param(
            "".join(json.dumps({f"k{n}": 1.0}) + "\n" for n in range(MOST_NAMES + 5)),
            "5 lines were not read",
            id="names",
        ),
    ],
)
def test_a_limit_is_named_and_the_process_lives(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "a.jsonl").write_text(text)
    command = [sys.executable, "-m", "nantrap", "data", str(tmp_path / "a.jsonl")]
    done = subprocess.run(command, timeout=300, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr[-500:]
    assert words in " ".join((done.stdout + done.stderr).split())


def test_brackets_in_text_are_ordinary_data(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"x": n * 0.5, "t": "[" * 90}) + "\n" for n in range(50)))
    command = [sys.executable, "-m", "nantrap", "data", str(tmp_path / "a.jsonl")]
    assert subprocess.run(command, timeout=300, capture_output=True, check=False).returncode == 0
