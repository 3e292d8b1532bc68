"""Lines of a journal that are decoded together give what each gives by itself, whatever is between them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nantrap.record import open_run


def records(number: int, seed: int) -> Iterator[dict[str, Any]]:
    """Steps of a run: some are skipped, some have other fields, and other lines are between them."""
    rng = random.Random(seed)
    for step in range(number):
        loss, norm = rng.gauss(0, 1), rng.expovariate(1)
        line: dict[str, Any] = {"step": step, "loss": loss, "terms": {"ce": loss / 3}, "grad_norm": norm, "lr": [1e-5]}
        kind = rng.randrange(40)
        if kind == 0:
            yield {"step": step, "kind": "incident_begins", "phase": "forward", "found": ["loss loss"]}
            yield {**line, "loss": "nan", "action": "skip", "incident": {"phase": "forward", "cause": "log_of_zero"}}
        elif kind == 1:
            yield {**line, "action": "apply", "watch": {"alpha": norm}}
        elif kind == 2:
            yield {**line, "loss": "-inf", "grad_norm": None, "action": "apply"}
        elif kind == 3:
            yield {"step": step, "kind": "eval", "metrics": {"eval_loss": loss}}
        else:
            yield {**line, "action": "apply", "by": "guard"}


@pytest.mark.parametrize("seed", range(3))
def test_lines_together_and_one_by_one_agree(tmp_path: Path, seed: int) -> None:
    """A line that is no JSON makes the reader take each line of its piece by itself."""
    text = [json.dumps(line) for line in records(700, seed)]
    whole, damaged = tmp_path / "whole", tmp_path / "damaged"
    for folder, lines in (
        (whole, text),
        (damaged, [*text[:100], "not JSON", "[1, 2]", *text[100:400], "", *text[400:]]),
    ):
        folder.mkdir()
        (folder / "journal-r0.jsonl").write_text("\n".join(lines) + "\n")
    one, other = open_run(whole), open_run(damaged)
    assert one.problems == ()
    assert [problem.partition(", ")[2] for problem in other.problems] == [
        f"line {line}: not a JSON object, skipped" for line in (101, 102)
    ]
    assert one.main.names == other.main.names
    for name in one.main.names:
        for part in ("row", "step", "value"):
            np.testing.assert_array_equal(getattr(one.main[name], part), getattr(other.main[name], part), err_msg=name)
    assert [(m.event, m.step, m.row) for m in one.marks] == [(m.event, m.step, m.row) for m in other.marks]
    begun = [mark for mark in one.marks if mark.event == "incident_begins"]
    assert begun
    assert all(one.main.step[mark.row] == mark.step for mark in begun), "a mark stands before its step"
    assert np.isnan(one.main["loss"].value).any()


def test_a_log_whose_shape_changes_midway(tmp_path: Path) -> None:
    first = [json.dumps({"step": i, "loss": i / 7}) for i in range(100)]
    second = [json.dumps({"loss": i / 7, "step": i, "note": "12"}) for i in range(100, 400)]
    (tmp_path / "log.jsonl").write_text("\n".join(first + second) + "\n")
    main = open_run(tmp_path / "log.jsonl").main
    assert main["loss"].value.tolist() == [i / 7 for i in range(400)]
    assert main.step.tolist() == list(range(400))
    assert main["note"].row.tolist() == list(range(100, 400))
    assert set(main["note"].value.tolist()) == {12.0}


def test_only_the_wanted_columns_are_kept(tmp_path: Path) -> None:
    lines = [json.dumps({"step": i, "loss": i / 7, "other": i, "text": "a"}) for i in range(200)]
    lines[50] = json.dumps({"step": 50, "loss": "nan", "other": 1, "third": 2})
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    main = open_run(tmp_path / "log.jsonl", columns=["loss"]).main
    assert main.names == ("loss",)
    assert np.flatnonzero(np.isnan(main["loss"].value)).tolist() == [50]
