"""The table of figures: means over seeds, the best remedy by name, and what was measured is not measured again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nantrap_systems import SYSTEMS, baselines, load_system
from nantrap_systems.figures import SHORTER, main, read_rows, table_of


def way(quality: float, **more: Any) -> dict[str, Any]:
    return {"quality": quality, "applied": 60, "steps": 60, "stopped": False, **more}


def row(seed: int, **ways: dict[str, Any]) -> dict[str, Any]:
    return {"system": "temi", "fault": "nan_row", "seed": seed, "ways": ways}


def test_the_table() -> None:
    first = row(8, clean=way(0.9), plain=way(0.0), a=way(0.5), b=way(0.1), nantrap=way(0.8, applied=54))
    second = row(9, clean=way(0.8), plain=way(0.0), a=way(0.1), b=way(0.7), nantrap=way(0.7, stopped=True))
    *_, last = table_of([first, second]).splitlines()
    assert last == "| temi | `nan_row` | 2 | 85.0% | 0.0% | 40.0% b | 75.0% (stopped) | 95% |  |"
    first["ways"][SHORTER] = way(0.7)
    *_, last = table_of([first, second]).splitlines()
    assert last.endswith(" | 95% | 75.0% |"), "0.7, and the clean 0.8 where no step was left out"


def test_the_table_of_the_page_is_made_from_its_file() -> None:
    docs = Path(__file__).parents[1] / "docs"
    rows = read_rows(docs / "figures.jsonl")
    text = (docs / "figures.md").read_text(encoding="utf-8")
    assert text.partition("<!-- begin table -->\n")[2].partition("\n<!-- end table -->")[0] == table_of(rows)
    assert {(row["system"], row["fault"]) for row in rows} == {
        (name, fault.name) for name in SYSTEMS for fault in load_system(name).faults
    }


def test_what_the_file_holds_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "figures.jsonl"
    options = ["--file", str(path), "--fault", "nan_row", "--seeds", "8", "--steps", "2"]
    assert main(options) == 0
    assert capsys.readouterr().out.count("\n| temi | `nan_row` |") == 1
    (line,) = path.read_text().splitlines()
    assert set(json.loads(line)["ways"]) == {
        "clean",
        "plain",
        "nan_to_num(loss)",
        "reset p_k",
        "lower lr and clip",
        "nantrap",
    }
    assert main(options) == 0
    assert path.read_text() == line + "\n"


def test_k_means_finds_most_of_the_clusters() -> None:
    found = baselines.temi(load_system("temi").run(changes={"num_heads": 1}))
    assert found["clusters at random"] < 0.2
    assert found["k-means"] > 0.5
