"""Pictures of runs: formats, gaps, marks, columns that are not there. Drawn by the real matplotlib."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from nantrap import record
from nantrap.errors import UsageError
from nantrap.report.plots import PlotOptions, plot_runs

pytest.importorskip("matplotlib")


def run(folder: Path, name: str = "a.jsonl", *, rows: int = 200, **more: object) -> record.Run:
    path = folder / name
    lines = [
        {"step": i, "loss": float("nan") if i >= 150 else 5 / (i + 1), "grad_norm": 1.0, "epoch": i / 100,
         "action": "skip" if i == 40 else "apply", **more}
        for i in range(rows)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return record.open_run(path)


@pytest.mark.parametrize(("form", "head"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_formats(tmp_path: Path, form: str, head: bytes) -> None:
    assert plot_runs([run(tmp_path)], form=form).startswith(head)
    with pytest.raises(UsageError, match="a picture can be png, svg, pdf, not 'gif'"):
        plot_runs([run(tmp_path)], form="gif")


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    assert plot_runs([run(tmp_path)], form="svg") == plot_runs([run(tmp_path)], form="svg")


def test_several_runs_and_panels(tmp_path: Path) -> None:
    runs = [run(tmp_path, "a.jsonl"), run(tmp_path, "b.jsonl", extra=2.0)]
    for options in (
        PlotOptions(columns=("loss", "grad_norm", "ext*")),
        PlotOptions(columns=("loss",), side_by_side=True, by_epoch=True, log=False),
    ):
        picture = plot_runs(runs, form="svg", options=options).decode()
        assert picture.count('id="axes_') == (3 if len(options.columns) == 3 else 2)


def test_a_spike_of_one_step_among_many_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    values = np.ones(50_000)
    plain, spiked = values, values.copy()
    spiked[31_234] = 1000.0
    pictures = []
    for column in (plain, spiked):
        path.write_text("step,loss\n" + "".join(f"{i},{value}\n" for i, value in enumerate(column)))
        pictures.append(plot_runs([record.open_run(path)], form="svg").decode())
    assert len(re.findall("LineCollection", pictures[1])) > len(re.findall("LineCollection", pictures[0]))


def test_nothing_finite_is_a_picture_too(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"loss": NaN}\n{"loss": Infinity}\n')
    assert plot_runs([record.open_run(path)], form="png").startswith(b"\x89PNG")


def test_a_name_is_no_formula(tmp_path: Path) -> None:
    odd = r"$\frac{1}{$ _x"
    picture = plot_runs([run(tmp_path, **{odd: cast(Any, 1.0)})], form="png", options=PlotOptions(columns=(odd,)))
    assert picture.startswith(b"\x89PNG")


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no column 'accuracy'; there are: loss, grad_norm, epoch"):
        plot_runs([run(tmp_path)], form="png", options=PlotOptions(columns=("accuracy",)))
    with pytest.raises(UsageError, match="no rank 3; there are 0"):
        plot_runs([run(tmp_path)], form="png", options=PlotOptions(rank=3))


def written(picture: bytes) -> list[str]:
    """The texts of an SVG: matplotlib draws them as curves, each with a comment that has the text."""
    return re.findall("<!-- (.*?) -->", picture.decode())


def test_numbers_on_a_logarithmic_axis_do_not_cover_each_other(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps({"step": i, "loss": 2.0 / (1 + i / 20), "lr": 1e-3}) + "\n" for i in range(300)))
    texts = written(plot_runs([record.open_run(path)], form="svg", options=PlotOptions(columns=("loss", "lr"))))
    assert {"0.2", "0.5", "1", "2", "0.001"} <= set(texts)
    assert not {"0.3", "0.9", "0.8", "0.009"} & set(texts)


def test_a_column_that_one_run_lacks_is_not_recorded_and_runs_share_an_axis(tmp_path: Path) -> None:
    flat, falling = tmp_path / "flat.jsonl", tmp_path / "falling.jsonl"
    flat.write_text("".join(json.dumps({"step": i, "loss": 1.0}) + "\n" for i in range(20)))
    falling.write_text(
        "".join(json.dumps({"step": i, "loss": 10.0 ** -(i % 4), "extra": 1.0}) + "\n" for i in range(20))
    )
    for one, other in ((flat, falling), (falling, flat)):
        options = PlotOptions(columns=("loss", "extra"), side_by_side=True)
        texts = written(plot_runs([record.open_run(one), record.open_run(other)], form="svg", options=options))
        assert "not recorded" in texts
        assert "nothing finite" not in texts
        assert {"0.001", "0.01", "0.1"} <= set(texts), "the axis shows the curve that falls, in either order"
