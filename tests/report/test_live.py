"""The live view: its data, and the application driven by Textual's own pilot."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import numpy as np
import pytest

from nantrap import Incident, health, record
from nantrap.record import Column, Journal, write_bundle, write_run_info
from nantrap.report.live import incident_texts, new_lines, sparkline, view_of
from nantrap.report.serving.index import Index
from report.runs import line, write_run


def column(values: list[float]) -> Column:
    row = np.arange(len(values))
    return Column("loss", row, row, np.array(values, dtype=float))


def append(folder: Path, steps: range, *, skip: int = -1, rank: int = 0) -> None:
    book = Journal(folder, rank=rank)
    for step in steps:
        where = {"phase": "forward", "module": "attn", "op": "aten._softmax", "cause": "softmax_fully_masked_row"}
        bad = {"action": "skip", "loss": float("nan"), "incident": where} if step == skip else {}
        book.append({"step": step, "loss": 8.0 / (step + 1), "grad_norm": 1.0, "lr": [1e-3],
                     "action": "apply", "ms": 100.0, "watch": {"block.alpha": 0.01 * step}, **bad})  # fmt: skip
    book.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run_info(tmp_path, {"total_steps": 100, "watch": {"*.alpha": [{"max": 0.1}]}})
    append(tmp_path, range(40), skip=7)
    append(tmp_path, range(40), rank=1)
    write_bundle(tmp_path, Incident(step=7, rank=0, phase="forward", module="attn", op="aten._softmax"), text="x")
    return tmp_path


def test_sparklines() -> None:
    assert sparkline(column([1, 2, 4, 8, 16, 32, 64, 128]), width=8) == "▁▂▃▄▅▆▇█"
    assert sparkline(column([1.0] * 50), width=5) == "▅▅▅▅▅"
    assert sparkline(column([1.0, float("nan"), 2.0]), width=3, log=False) == "▁×█"
    assert sparkline(column([float("inf")] * 4), width=4) == "××××"
    assert "×" not in sparkline(column([float("nan") if step % 2 else 1.0 for step in range(100)]), width=10)
    spiked = [1.0] * 1000
    spiked[500] = 100.0
    assert sparkline(column(spiked), width=10).count("█") == 1
    assert sparkline(column([1e308, 1e308, -1e308, 1.0]), width=2) in ("█▁", "▁█")
    assert sparkline(column([]), width=5) == ""
    assert sparkline(column([0.7] * 100), width=30) == "▅" * 30  # means of 3 and of 4 of them differ in the last bit


def test_a_view(folder: Path) -> None:
    run = record.open_run(folder)
    view = view_of(run, now=run.modified + 5, verdict=health.judge(run))
    assert (
        view.headline == "running · step 39 of 100 (40.0%) · 10 steps/s · 6.0 s left · written 5.0 s ago · check: sick"
    )
    assert [value.name for value in view.values] == ["loss", "lr", "grad_norm", "block.alpha"]
    assert view.values[3].alarm == "above 0.1"
    assert view.values[0].course.endswith(", 1 ×"), "of 40 losses one is not finite, too few for a sign in the curve"
    assert (view.applied, view.skipped, [row.rank for row in view.ranks]) == (39, 1, [0, 1])
    assert view_of(run, now=run.modified + 7200).state == "stalled"
    assert next(new_lines(run, since=0)) == "step 7  skip in forward at attn: softmax_fully_masked_row"
    assert list(new_lines(run, since=40)) == []
    assert incident_texts(run, width=60)[0].startswith("error")


@pytest.mark.parametrize(
    ("lines", "state"),
    [
        ([], "waiting"),
        (["Epoch 1/1 10/10 [00:01, loss=1.0]"], "finished"),
        ([f"step {i} loss nan" for i in range(12)], "sick"),
    ],
)
def test_states(tmp_path: Path, lines: list[str], state: str) -> None:
    log = tmp_path / "train.log"
    log.write_text("".join(line + "\n" for line in lines))
    run = record.open_run(log)
    assert view_of(run, now=run.modified).state == state


@pytest.mark.parametrize(("end", "word"), [({}, "finished"), ({"error": "ValueError"}, "dead")])
def test_the_word_is_that_of_the_list_of_runs(tmp_path: Path, end: dict[str, str], word: str) -> None:
    write_run(tmp_path / "exp1", [line(0), {"step": 1, "kind": "run_ends", **end}])
    run = record.open_run(tmp_path / "exp1")
    index = Index(tmp_path)
    index.discover()
    assert view_of(run, now=run.modified).state == index.summaries()[0].state.word == word


def test_the_application(folder: Path) -> None:
    pytest.importorskip("textual")
    from textual.widgets import Static

    from nantrap.report.watching import WatchApp

    async def drive() -> None:
        run = record.open_run(folder)
        app = WatchApp(run, interval=3600)

        def shown(name: str) -> str:
            return str(app.query_one(name, Static).render())

        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.pause()
            assert "step 39 of 100" in shown("#head")
            assert "block.alpha" in shown("#rows")
            assert "skipped 1" in shown("#counts")
            assert "▸ rank 0" in shown("#counts")
            assert "incident 1 of 1" in shown("#text")
            append(folder, range(40, 50))
            write_bundle(folder, Incident(step=45, rank=0, phase="backward", module="m"), text="x")
            app.look()
            await pilot.pause()
            assert "step 49 of 100" in shown("#head")
            assert "incident 2 of 2" in shown("#text")
            await pilot.press("[", "r", "w", "l")
            assert "incident 1 of 2" in shown("#text")
            assert "▸ rank 1" in shown("#counts")
            assert "(curves: last 10,000)" in shown("#counts")
            await pilot.press("]", "p")
            assert "incident 2 of 2" in shown("#text")
            append(folder, range(50, 51))
            app.look()
            assert "step 39 of 100" in shown("#head")  # rank 1, and paused
            assert "(paused)" in shown("#head")
            await pilot.resize_terminal(200, 60)
            await pilot.resize_terminal(30, 8)
            await pilot.press("q")

    asyncio.run(drive())


def test_a_growing_log_of_others_on_80_columns(tmp_path: Path) -> None:
    """Facts of the headline are not broken at the end of a line, and lines of a log are not called incidents."""
    pytest.importorskip("textual")
    from textual.widgets import Static

    from nantrap.report.watching import WatchApp

    log = tmp_path / "train.log"
    rows = [
        f"epoch 4/10 | step {i + 1}/1000 | loss {'nan' if i == 321 else 2 - 0.001 * i} | lr 1e-3" for i in range(382)
    ]
    log.write_text("\n".join(rows[:300]) + "\n")

    async def drive() -> None:
        app = WatchApp(record.open_run(log), interval=3600)
        async with app.run_test(size=(80, 24)) as pilot:
            with log.open("a") as file:
                file.write("\n".join([*rows[300:], "RuntimeError: loss is NaN"]) + "\n")
            app.look()
            await pilot.pause()
            head = str(app.query_one("#head", Static).render()).splitlines()
            assert head[0] == "● train.log  running · step 382 of 1,000 (38.2%) · epoch 4 of 10"
            assert re.fullmatch(r"written [\d.]+ s ago · check: \w+", head[1])
            assert "1.62 … 2, 1 ×" in str(app.query_one("#rows", Static).render())
            assert "line about NaN or an error, 1 of 1\n" in str(app.query_one("#text", Static).render())

    asyncio.run(drive())


@pytest.mark.parametrize("columns", [80, 40])
def test_nothing_is_wider_than_the_screen(folder: Path, columns: int) -> None:
    pytest.importorskip("textual")
    from textual.widgets import Static

    from nantrap.report.watching import WatchApp

    async def drive() -> None:
        app = WatchApp(record.open_run(folder), interval=3600)
        async with app.run_test(size=(columns, 24)) as pilot:
            await pilot.pause()
            for name, room in (("#rows", columns - 2), ("#text", columns - 4)):
                lines = str(app.query_one(name, Static).render()).splitlines()
                assert max(len(line) for line in lines if "incidents" not in line) <= room, lines  # a path stays whole

    asyncio.run(drive())


def test_an_empty_log_and_hostile_names(tmp_path: Path) -> None:
    pytest.importorskip("textual")
    from nantrap.report.watching import WatchApp

    log = tmp_path / "log.jsonl"
    log.write_text("")

    async def drive() -> None:
        run = record.open_run(log)
        app = WatchApp(run, interval=3600)
        async with app.run_test(size=(80, 24)) as pilot:
            log.write_text(json.dumps({"loss": 1.0, "[red]\x1b[2J[/nothing]": 2.0}) + "\n")
            app.look()
            await pilot.pause()
            assert len(run.main) == 1

    asyncio.run(drive())
