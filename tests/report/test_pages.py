"""The HTML of runs and incidents: one file, nothing from outside, everything escaped, the same bytes each time."""

from __future__ import annotations

import base64
import hashlib
import itertools
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from nantrap import record
from nantrap.incident import Action, Cause, Decider, Fix, Frame, Incident
from nantrap.report.pages import incident_page, run_page
from nantrap.report.poison import path_note, path_of_poison
from nantrap.report.surroundings import command_text, source_lines, surroundings
from nantrap.report.view_incident import view_incident
from nantrap.report.view_run import view_run
from nantrap.report.writing import write_incident_report, write_run_report
from report.runs import EVIL, HOSTILE, MASKED, line, skipped, usual_run, write_incident, write_run

VOID = {"meta", "br", "img", "input", "link", "hr"}
FORBIDDEN = {"script", "iframe", "object", "embed", "link", "img", "form", "base", "audio", "video"}


class Checked(HTMLParser):
    """Reads a page and complains about what must not be in it."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.texts: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.policy = ""
        self.feed(page.replace("<wbr>", ""))  # a place where a browser may break a name
        assert self.open == [], f"left open: {self.open}"
        inside = [link[1:] for link in self.links if link.startswith("#")]
        assert set(inside) <= self.ids, set(inside) - self.ids

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in FORBIDDEN, tag
        found = dict(attrs)
        assert len(found) == len(attrs), f"an attribute twice: {attrs}"
        for name, content in attrs:
            assert not name.startswith("on"), (tag, name)
            assert name not in ("style", "src", "srcdoc"), (tag, name)
            assert name != "href" or not re.match(r"\s*(javascript|data|https?|//)", content or "", re.I), content
        if "id" in found:
            assert found["id"] not in self.ids, found["id"]
            self.ids.add(found["id"] or "")
        if tag == "a":
            self.links.append(found.get("href") or "")
        if found.get("http-equiv") == "Content-Security-Policy":
            self.policy = found["content"] or ""
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def test_the_first_screen_of_an_incident_says_it_all() -> None:
    page = Checked(incident_page(view_incident(MASKED)))
    for words in (
        "✖ NT203",
        "✓ proven by trial 1",
        "Softmax over a row in which every position is masked gave NaN, from sample 3.",
        "model.py:39 in Attention.weights",
        "72 of 1,152 rows are -inf everywhere, and exactly those rows are NaN.",
        "Skipped the step.",
        "✓ Fix:",
        "+ return nantrap.ops.masked_softmax(scores, mask)",
    ):
        assert words in page.text, words


def test_a_replay_is_advised_only_where_none_was_made() -> None:
    guess = replace(MASKED, causes=(replace(MASKED.causes[0], proven=False),))
    advice = "Let the guard repeat the step"
    assert not any(step.startswith(advice) for step in view_incident(guess).next_steps), "trials were made"
    assert any(step.startswith(advice) for step in view_incident(replace(guess, trials=())).next_steps)


def test_code_at_the_start_of_a_sentence_keeps_its_small_letter() -> None:
    cause = replace(MASKED.causes[0], fix=Fix("nantrap.ops.safe_pow(x, a), or an eps inside", verified=True, trial=1))
    view = view_incident(replace(MASKED, causes=(cause,)))
    assert view.next_steps[0].startswith("nantrap.ops.safe_pow(x, a), or an eps inside: verified, the step")


def test_the_evidence_follows() -> None:
    page = Checked(incident_page(view_incident(MASKED)))
    for words in (
        "1,296 of 20,736 values are NaN",
        "nantrap stopped it here: no optimizer step",
        "640 of 640 values not finite (100 %)",
        "as before step 7",
        "bmm → clone blocks.0.attention, lines 40 to 41 a part of its values 6.25 %",
        "addmm head, line 52 a part of its values 50 %",
        "7 more operations not finite either",
        "mean loss, line 60 every value 100 %",
        "✗ refuted by trial 2",
        "with a tenth of the learning rate it is still NaN",
        "control nothing: the step as it was ✖ not finite , loss NaN 20 ms fails as it did: the trials count",
        "control nothing: the steps ✖ not finite 0 ms fails as it did",
        "proves NT203, verifies the fix",
        "refutes NT501",
        "not known: the batch carries no index",
    ):
        assert words in page.text, words


OVERFLOW = replace(MASKED, causes=(Cause("fp16_forward_overflow"),))


def test_sizes_are_shown_where_range_may_be_the_cause() -> None:
    page = Checked(incident_page(view_incident(OVERFLOW)))
    for words in (
        "limit of float32: 3.4028e+38",
        "How large the result of aten._softmax in blocks.0.attention was",
        "limit of float16: 65504",
        "times what it was at step 5, with 3.5 bits left. Measured after the failure: 2 steps were run again from an",
        "How large the output of blocks.0.attention was",
        "At step 6 it was 512 times what it was at step 4, with 3.5 bits left. Sampled while the run was healthy, in 2",
        "bits left",
    ):
        assert words in page.text, words
    masked = Checked(incident_page(view_incident(MASKED))).text
    assert "Operations before" in masked
    assert "headroom" not in masked
    assert "bits left" not in masked


@pytest.mark.parametrize("phase", ["data", "state", "forward", "backward", "optimizer"])
@pytest.mark.parametrize("action", ["apply", "skip", "rollback", "stop"])
def test_every_phase_and_action_has_a_page(phase: str, action: str) -> None:
    document = {**MASKED.to_dict(), "phase": phase, "action": action}
    Checked(incident_page(view_incident(Incident.from_dict(document))))
    bare = {"schema": "nantrap.incident/1", "step": 0, "phase": phase, "action": action}
    page = Checked(incident_page(view_incident(Incident.from_dict(bare))))
    assert "? cause unknown" in page.text
    assert "No trial was run." in page.text


def test_a_state_that_was_not_restored_is_not_called_as_before() -> None:
    text = Checked(incident_page(view_incident(replace(MASKED, restored=False)))).text
    assert "Not everything is as it was before the step: see the note." in text
    assert "not everything was restored" in text
    assert "as before step 7" not in text


@pytest.mark.parametrize("decided_by", ["script", "scaler", "exception"])
def test_a_page_does_not_claim_what_nantrap_did_not_do(decided_by: Decider) -> None:
    text = Checked(incident_page(view_incident(replace(MASKED, decided_by=decided_by)))).text
    assert "nantrap stopped it here" not in text
    assert "Skipped the step." not in text
    assert "that ended the step." in text
    used = Checked(incident_page(view_incident(replace(MASKED, decided_by=decided_by, action=Action.APPLY)))).text
    assert ("The script uses this value." in used) == (decided_by == "script")


def test_a_long_path_shows_its_beginning_and_its_end() -> None:
    frames = tuple(
        Frame(f"aten.op{i}", f"block.{i // 6}", "float32", None, nonfinite=1, line=i, share=0.5) for i in range(60)
    )
    stops = path_of_poison(replace(MASKED, path=frames, probes=()))
    carried = [(stop.name, stop.where) for stop in stops if stop.kind == "bad"]
    assert carried[:7] == [
        ("op0 → op1 → 3 more → op5", "block.0, lines 1 to 5"),
        ("op6 → op7 → 3 more → op11", "block.1, lines 6 to 11"),
        ("op12 → op13 → 3 more → op17", "block.2, lines 12 to 17"),
        ("24 more operations", "block.3, block.4, block.5 and 1 more"),
        ("op42 → op43 → 3 more → op47", "block.7, lines 42 to 47"),
        ("op48 → op49 → 3 more → op53", "block.8, lines 48 to 53"),
        ("op54 → op55 → 3 more → op59", "block.9, lines 54 to 59"),
    ]
    assert path_note(replace(MASKED, path=())) == "The operations between the origin and the loss were not recorded."
    assert path_note(MASKED) == ""


def test_a_file_of_an_older_version_shows_the_samples_of_its_headroom() -> None:
    older = replace(OVERFLOW, magnitudes=(), headroom={"4": 12.5, "5": 9.0, "6": 3.5})
    text = Checked(incident_page(view_incident(older))).text
    assert "How large the output of blocks.0.attention was" in text
    assert "At step 6 it was 512 times what it was at step 4, with 3.5 bits left." in text


def test_a_page_says_what_was_not_sampled() -> None:
    text = Checked(incident_page(view_incident(replace(OVERFLOW, magnitudes=())))).text
    said = "How large this module's values were over the last steps is not known: no step before this one was sampled"
    assert f"{said} ( Sampling(magnitudes_every=64) ; compiled models are never sampled)." in text
    assert "keeps it." not in Checked(incident_page(view_incident(MASKED))).text


def test_hostile_names_are_text(tmp_path: Path) -> None:
    folder = write_incident(tmp_path / EVIL.replace("/", "") / "incidents" / "000003-r0", HOSTILE)
    written = incident_page(view_incident(HOSTILE, surroundings(HOSTILE, folder)))
    page = Checked(written)
    assert "a\\x1b]0;x\\x07<script>alert(1)</script>" in page.text
    assert "{{ 7 * 7 }}" in page.text, "no template in a name is run"
    assert not set(written) & set("\x1b\x07\u202e")
    lines = [line(0, terms={EVIL: 1.0}, watch={EVIL: 2.0}), skipped(1, cause=EVIL), line(2)]
    run = write_run(tmp_path / "run", lines, incidents=(HOSTILE,), info={"model": EVIL, "arguments": [EVIL]})
    written = run_page(view_run(record.open_run(run)))
    assert "<script>alert(1)</script>" in Checked(written).text
    assert not set(written) & set("\x1b\x07\u202e")


def test_the_policy_allows_the_style_of_the_page_and_nothing_else() -> None:
    written = incident_page(view_incident(MASKED))
    style = re.search(r"<style>(.*?)</style>", written, re.S)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert Checked(written).policy == policy
    assert "url(" not in style[1].replace("url(#hatch)", "")
    assert "@import" not in style[1]


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = usual_run(tmp_path / "exp1")
    pages = [run_page(view_run(record.open_run(folder))) for _ in range(2)]
    assert pages[0] == pages[1]
    incident = folder / "incidents" / "000007-r0"
    first = write_incident_report(incident)
    assert first is not None
    earlier = first.read_bytes()
    write_incident_report(incident)
    assert first.read_bytes() == earlier


def test_the_page_of_a_run(tmp_path: Path) -> None:
    page = Checked(run_page(view_run(record.open_run(usual_run(tmp_path / "exp1")))))
    for words in (
        "▲ with incidents",
        "300 steps, 296 applied (98.7 %), 2 causes, 1 proven.",
        "Held-out loss 0.01 at step 299, the best so far.",
        "4 steps not applied, 3 in a row at most.",
        "1 rollback, the last at step 42.",
        "1 of 3 rollbacks used",
        "Cause 1, NT203: 3 of 4 incidents; a fix was verified at step 7.",
        "Loss terms",
        "Gradient norm",
        "clip 1",
        "Loss scale",
        "Watched: blocks.0.alpha",
        "Around the rollback",
        "accuracy",
        "train.py --api-key '[redacted]' --lr=0.1 '--hf-token=[redacted]'",
    ):
        assert words in page.text, words
    assert "s3cret" not in page.text
    assert "incidents/000007-r0/report.html" in page.links


def test_a_healthy_run_and_an_empty_one_and_a_foreign_log(tmp_path: Path) -> None:
    healthy = write_run(tmp_path / "good", [line(step) for step in range(5)])
    text = Checked(run_page(view_run(record.open_run(healthy)))).text
    assert "✓ healthy" in text
    assert "5 steps, 5 applied (100 %)." in text
    assert "Nothing to do." in text
    empty = Checked(run_page(view_run(record.open_run(write_run(tmp_path / "empty", []))))).text
    assert "No step was recorded." in empty
    assert "%" not in empty
    log = tmp_path / "train.jsonl"
    log.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 1.0}\n')
    assert "2 steps in this log." in Checked(run_page(view_run(record.open_run(log)))).text


def test_ranks_that_differ_are_named(tmp_path: Path) -> None:
    write_run(tmp_path / "exp", [line(step) for step in range(5)])
    write_run(tmp_path / "exp", [*(line(step) for step in range(3)), skipped(3), line(4)], rank=1)
    text = Checked(run_page(view_run(record.open_run(tmp_path / "exp")))).text
    assert "✖ differs from step 3 on" in text
    assert "✓ always" in text


def test_discs_of_causes_that_begin_together_do_not_cover_each_other(tmp_path: Path) -> None:
    bad = {5: "softmax_fully_masked_row", 6: "fp16_forward_overflow", 7: "log_of_zero"}
    lines = [skipped(step, bad[step]) if step in bad else line(step) for step in range(300)]
    page = run_page(view_run(record.open_run(write_run(tmp_path / "exp", lines))))
    heights = [float(y) for y in re.findall(r'<circle cx="[\d.]+%" cy="([\d.]+)" r="8.5"', page)]
    assert len(heights) == 3
    assert min(b - a for a, b in itertools.pairwise(heights)) > 2 * 8.5


def test_a_long_run_stays_small_and_keeps_its_spike(tmp_path: Path) -> None:
    steps = 50_000
    usual = [1.0 + step % 7 / 10 + 2000 * math.exp(-step / 3000) for step in range(steps)]  # higher at the beginning
    lines = [line(step, 900.0 if step == 31_234 else usual[step]) for step in range(steps)]
    page = run_page(view_run(record.open_run(write_run(tmp_path / "long", lines))))
    assert len(page.encode()) < 400_000
    assert "▲ 900 at step 31,234" in Checked(page).text
    assert "50,000 steps in 400 columns of 125 steps." in Checked(page).text


def test_writing_a_report_never_raises(tmp_path: Path) -> None:
    assert write_incident_report(tmp_path / "nothing") is None
    assert write_run_report(tmp_path / "nothing") is None
    folder = tmp_path / "incidents" / "000001-r0"
    folder.mkdir(parents=True)
    (folder / "incident.json").write_text("{")
    assert write_incident_report(folder) is None
    run = usual_run(tmp_path / "exp1", steps=60)
    assert write_run_report(run) == run / "report.html"
    (run / "report.html").write_text("my own notes")
    assert write_run_report(run) is None, "what nantrap did not write is not overwritten"
    assert (run / "report.html").read_text() == "my own notes"


def test_source_lines_come_from_the_file_only_if_it_still_has_the_line(tmp_path: Path) -> None:
    file = tmp_path / "model.py"
    file.write_text("".join(f"line_{number} = 0\n" for number in range(1, 10)))
    assert MASKED.source is not None
    source = replace(MASKED.source, file=str(file), line=5, text="line_5 = 0")
    assert [number for number, _ in source_lines(source)] == [2, 3, 4, 5, 6, 7, 8]
    assert source_lines(replace(source, text="other = 1")) == ((5, "other = 1"),)
    assert source_lines(replace(source, file="/etc/passwd", line=1)) == ((1, "line_5 = 0"),)
    assert source_lines(replace(source, file=str(tmp_path))) == ((5, "line_5 = 0"),)


def test_a_command_line_without_secrets() -> None:
    given = ["train.py", "--password", "x y", "--name", "a b", "TOKEN=x", "--token", "--lr", "1"]
    expected = "train.py --password '[redacted]' --name '[redacted]' 'TOKEN=[redacted]' --token --lr 1"
    assert command_text(given) == expected


def test_similar_incidents_that_were_only_counted_are_on_the_page_when_the_run_has_ended(tmp_path: Path) -> None:
    first = [line(step) for step in range(7)]
    run = write_run(tmp_path / "run", first, incidents=(MASKED,))
    folder = run / "incidents" / "000007-r0"
    page = write_incident_report(folder)
    assert page is not None
    assert "No other incident of this run looked like this one" in page.read_text(encoding="utf-8")
    rest = [skipped(7), line(8), skipped(9), skipped(10, "another_cause"), {**skipped(11), "kind": "step"}]
    write_run(run, [*first, *rest])
    with (run / "journal-r0.jsonl").open("a") as file:
        file.write('{"step":12,"incident":{"phase":"forw')  # being written
    write_run_report(run)
    said = page.read_text(encoding="utf-8")
    assert "The same cause, module and operation at 2 more steps of this run: 9, 11." in said


def test_a_page_of_others_in_the_folder_of_an_incident_is_not_replaced(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [line(0), skipped(7)], incidents=(MASKED,))
    mine = run / "incidents" / "000007-r0" / "report.html"
    mine.write_text("my notes", encoding="utf-8")
    assert write_run_report(run) is not None
    assert mine.read_text(encoding="utf-8") == "my notes"


def test_a_light_bundle_says_what_a_replay_needs(tmp_path: Path) -> None:
    said = incident_page(view_incident(MASKED))
    assert 'id="replay"' in said
    assert '<code>Policy(bundle=Bundle(kind="full", data=True))</code>' in said


def test_the_failed_step_is_in_the_charts_before_the_journal_has_it(tmp_path: Path) -> None:
    """The page is written while the step is judged."""
    run = write_run(tmp_path / "run", [line(step, 2.0 - 0.1 * step) for step in range(7)], incidents=(MASKED,))
    page = write_incident_report(run / "incidents" / "000007-r0")
    assert page is not None
    said = page.read_text(encoding="utf-8")
    assert "Loss up to the incident, steps 0 to 7, from 2 to 1.4, 1 not finite." in said


def test_long_names_break_behind_a_dot() -> None:
    said = incident_page(view_incident(replace(MASKED, module="encoder.layers.0.attention")))
    assert "encoder.<wbr>layers.<wbr>0.<wbr>attention, line 39" in said


def test_a_step_more_than_columns_is_one_or_two_steps_each(tmp_path: Path) -> None:
    view = view_run(record.open_run(write_run(tmp_path / "run", [line(step) for step in range(500)])))
    assert "500 steps in 400 columns of 1 or 2 steps." in run_page(view)


@pytest.mark.parametrize("steps", [0, 1, 2, 3])
def test_an_incident_in_the_first_steps_has_no_link_to_a_section_that_is_not_there(tmp_path: Path, steps: int) -> None:
    bare = replace(MASKED, step=steps, frames=(), magnitudes=(), headroom={})
    run = write_run(tmp_path / "run", [line(step) for step in range(steps)], incidents=(bare,))
    page = write_incident_report(run / "incidents" / f"{steps:06d}-r0")
    assert page is not None
    Checked(page.read_text(encoding="utf-8"))


def test_positions_in_the_batch_and_in_the_dataset_are_said_once() -> None:
    said = Checked(incident_page(view_incident(replace(MASKED, samples=(2,), dataset_indices=(5,))))).text
    assert "In the batch 2 (counted from 0) In the dataset 5" in said


def test_a_rollback_says_which_state_was_restored(tmp_path: Path) -> None:
    back = skipped(30, action="rollback")
    back["incident"]["restored_step"] = 20
    lines = [*(line(step, 2.0 / (step + 1)) for step in range(30)), back, *(line(step) for step in range(31, 60))]
    run = record.open_run(write_run(tmp_path / "run", lines))
    assert "incident.restored_step" not in run.main.names
    said = Checked(run_page(view_run(run))).text
    assert "1 rollback, the last at step 30 to step 20." in said
    incident = replace(MASKED, action=Action.ROLLBACK, restored=None, restored_step=20)
    page = Checked(incident_page(view_incident(Incident.from_dict(incident.to_dict())))).text
    assert "Rolled back. The state of step 20 was restored." in page
    assert "as in the state of step 20" in page
    assert "= did: nantrap restored the state of step 20" in page
