"""The index of runs: found, summarised from the end of a journal, gathered in slices, and only a cache."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sqlite3
from pathlib import Path

import pytest

from nantrap.health import judge
from nantrap.record import open_run
from nantrap.report.serving.cache import BUCKET
from nantrap.report.serving.index import Index
from nantrap.report.states import RecentSteps, state_of
from report.runs import MASKED, line, skipped, usual_run, write_run


def opened(root: Path, cache: Path | None = None) -> Index:
    index = Index(root, cache=cache)
    index.discover()
    return index


def only(index: Index) -> str:
    (summary,) = index.summaries()
    return summary.ident


def test_runs_are_found_at_any_depth_and_a_run_itself_too(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [line(0)])
    write_run(tmp_path / "group" / "b", [line(0)])
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / ".hidden" / "c", [line(0)])
    assert sorted(summary.name for summary in opened(tmp_path).summaries()) == ["a", "group/b"]
    assert [summary.name for summary in opened(tmp_path / "a").summaries()] == ["a"]


def test_a_summary_says_what_the_list_shows(tmp_path: Path) -> None:
    index = opened(usual_run(tmp_path / "exp1"))
    (summary,) = index.summaries()
    assert (summary.step, summary.recent, summary.recent_applied) == (299, 300, 296)
    assert (summary.incident, summary.incident_step) == ("fp16_forward_overflow", 42)
    assert summary.scale == 1024.0
    assert json.dumps(summary.to_dict(), allow_nan=False)


def test_of_runs_in_one_state_the_one_with_the_fewest_applied_steps_is_first(tmp_path: Path) -> None:
    for name, bad in (("a", {30}), ("b", {10, 20, 30}), ("c", set())):
        write_run(tmp_path / name, [skipped(step) if step in bad else line(step) for step in range(100)])
    assert [(s.name, s.state.word) for s in opened(tmp_path).summaries()] == [
        ("b", "incidents"), ("a", "incidents"), ("c", "healthy")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("end", "state", "reason"),
    [
        ({}, "finished", "the run has ended"),
        ({"error": "ValueError"}, "dead", "ended by ValueError"),
        ({"error": "\x1b[2J"}, "dead", "ended by \\x1b[2J"),
    ],
)
def test_a_run_that_says_that_it_is_over(tmp_path: Path, end: dict[str, str], state: str, reason: str) -> None:
    index = opened(write_run(tmp_path / "exp1", [line(0), {"step": 1, "kind": "run_ends", **end}]))
    (summary,) = index.summaries()
    assert (summary.state.word, summary.state.reason) == (state, reason)
    with (tmp_path / "exp1" / "journal-r0.jsonl").open("a") as file:
        file.write(json.dumps(line(1)) + "\n")
    assert opened(tmp_path).summaries()[0].state.word == "healthy"  # it was started again


@pytest.mark.parametrize(
    ("losses", "word", "tone"),
    [
        ([5.0 - step / 100 for step in range(300)], "finished", "ok"),
        ([5.0 - step / 100 for step in range(299)] + [math.nan], "finished", "warn"),
        ([math.nan if step % 2 else 1.0 for step in range(300)], "sick", "bad"),
    ],
)
def test_a_finished_run_has_the_verdict_of_nantrap_check(
    losses: list[float], word: str, tone: str, tmp_path: Path
) -> None:
    lines = [line(step, loss) if math.isfinite(loss) else skipped(step) for step, loss in enumerate(losses)]
    run = write_run(tmp_path / "exp1", [*lines, {"step": 300, "kind": "run_ends"}])
    (summary,) = opened(run).summaries()
    assert (summary.state.word, summary.state.tone) == (word, tone)
    verdict = {"ok": "healthy", "warn": "doubtful", "bad": "sick"}[tone]
    assert judge(open_run(run)).word == verdict


def test_curves_keep_the_spike_and_count_what_is_not_finite(tmp_path: Path) -> None:
    lines = [line(step, math.nan if step == 900 else 70.0 if step == 1234 else 1.0) for step in range(3000)]
    lines[77] = skipped(77)
    index = opened(write_run(tmp_path / "exp1", lines))
    ident = only(index)
    while index.scan_run(ident, most_bytes=20_000):
        pass
    curves = index.curves(ident, 0, 2999)
    loss = {entry[0]: entry for entry in curves["columns"]["loss"]}
    assert max(entry[3] for entry in loss.values()) == 70.0
    assert loss[1234 // BUCKET * BUCKET][3] == 70.0
    assert sum(entry[5] for entry in loss.values()) == 2
    assert sum(entry[4] for entry in loss.values()) == 2998
    assert [tuple(mark) for mark in curves["marks"]] == [(77, "skip", "softmax_fully_masked_row")]
    assert curves["read"] == 1.0
    counts = index.counts(ident)
    assert (counts.attempted, counts.applied, counts.skipped, counts.incidents) == (3000, 2999, 1, 1)


def test_only_what_was_appended_is_read_again(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "exp1", [line(step) for step in range(100)])
    cache = tmp_path / "cache.sqlite"
    first = opened(tmp_path / "runs", cache)
    first.scan()
    first.close()
    journal = run / "journal-r0.jsonl"
    content = journal.read_bytes()
    journal.write_bytes(b"x" * (len(content) - 1) + b"\n")  # what was read is not looked at again
    with journal.open("a") as file:
        file.write(json.dumps(line(100)) + "\n" + '{"step": 101, "lo')
    second = opened(tmp_path / "runs", cache)
    second.scan()
    assert second.counts(only(second)).attempted == 101
    with journal.open("a") as file:
        file.write('ss": 2.0}\n')
    second.scan()
    assert second.counts(only(second)).attempted == 102, "half a line waits until it is whole"


def test_a_journal_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    run = write_run(tmp_path / "exp1", [line(step) for step in range(50)])
    index = opened(tmp_path)
    index.scan()
    os.replace(write_run(tmp_path / "other" / "x", [line(0)]) / "journal-r0.jsonl", run / "journal-r0.jsonl")
    index.scan()
    assert index.counts(only(index)).attempted == 1


@pytest.mark.parametrize("content", [b"this is no database", b""])
def test_a_damaged_cache_is_thrown_away(content: bytes, tmp_path: Path) -> None:
    write_run(tmp_path / "exp1", [line(0)])
    cache = tmp_path / "cache" / "serve.sqlite"
    cache.parent.mkdir()
    cache.write_bytes(content)
    index = opened(tmp_path, cache)
    index.scan()
    assert index.counts(only(index)).attempted == 1
    index.close()
    with contextlib.closing(sqlite3.connect(cache)) as database:
        assert database.execute("SELECT COUNT(*) FROM scans").fetchone() == (1,)


APPLIED = ["apply"] * 50


@pytest.mark.parametrize(
    ("recent", "word"),
    [
        (RecentSteps([], []), "unknown"),
        (RecentSteps([1.0] * 50, APPLIED), "healthy"),
        (RecentSteps([1.0] * 50, [*APPLIED[:-1], "stop"], age=9999), "stopped"),
        (RecentSteps([1.0] * 50, APPLIED, age=61), "stalled"),
        (RecentSteps([1.0] * 50, APPLIED, age=61, milliseconds=60_000), "healthy"),
        (RecentSteps([1.0] * 50, APPLIED, age=61, alive=False), "dead"),
        (RecentSteps([1.0] * 50, APPLIED, age=61, alive=False, ended=True), "finished"),
        (RecentSteps([1.0] * 50, APPLIED, steps=50, total=50), "finished"),
        (RecentSteps([1.0] * 49 + [math.nan], APPLIED), "diverging"),
        (RecentSteps([9.0] * 50, APPLIED, best=1.0), "diverging"),
        (RecentSteps([math.nan] * 10 + [1.0] * 40, ["skip"] * 10 + APPLIED[10:]), "skipping"),
        (RecentSteps([1.0] * 50, [*APPLIED[:-4], "rollback", *APPLIED[:3]]), "recovering"),
        (RecentSteps([1.0] * 50, APPLIED, incidents=1, since_incident=200), "incidents"),
        (RecentSteps([1.0] * 50, APPLIED, incidents=1, since_incident=1), "incidents"),
        (RecentSteps([1.0] * 50, APPLIED, age=1463, milliseconds=12.5), "stalled"),
        (RecentSteps([1.0] * 50, APPLIED, incidents=1, since_incident=20_000), "healthy"),
    ],
)
def test_the_state_of_a_run(recent: RecentSteps, word: str) -> None:
    found = state_of(recent)
    assert found.word == word
    assert not re.search(r"\b1 steps|\d{4} s", found.reason)
    assert found.reason
    assert found.sign


def test_no_incident_is_said_only_of_a_run_that_was_read_as_a_whole(tmp_path: Path) -> None:
    """The list reads the end of a journal: an incident before it is not seen there."""
    short = [line(step) for step in range(50)]
    write_run(tmp_path / "short", short)
    write_run(tmp_path / "long", [skipped(3), *(line(step) for step in range(4, 4000))])
    write_run(tmp_path / "kept", short, incidents=(MASKED,))
    said = {each.name: each.to_dict()["without_incident"] for each in opened(tmp_path).summaries()}
    assert said == {"short": "no incident", "long": "no recent incident", "kept": "no recent incident"}
