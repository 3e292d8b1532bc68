"""The diagnostic in the terminal: its exact text for fixed incidents, with and without colours."""

from __future__ import annotations

import io
import math
import os
import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from nantrap.incident import Action, Cause, Decider, Evidence, Finding, Fix, Frame, Incident, Probe, Source, TensorStats
from nantrap.report import diagnostic, fingerprint, one_line, render_incident, write_line
from nantrap.report.diagnostics import done_text
from nantrap.report.terminal import can_link, wrapped

MASKED = Incident(
    step=1204,
    phase="forward",
    module="blocks.3.attn.softmax",
    op="aten._softmax",
    source=Source(
        file="model.py",
        line=41,
        function="Attention.forward",
        text="    weights = scores.softmax(dim=-1)",
        column=14,
        end_column=36,
    ),
    findings=(
        Finding("activation", "output", "forward", stats=TensorStats((2, 4, 196), "float16", 1568, nan=28)),
        Finding("gradient", "blocks.3.attn.q.weight", "backward", stats=TensorStats((8, 8), "float16", 64, nan=64)),
    ),
    causes=(
        Cause(
            "softmax_fully_masked_row",
            proven=True,
            confidence=0.98,
            risk="medium",
            summary="softmax over a row in which every position is masked gave NaN",
            evidence=(
                Evidence("7 of 392 rows are -inf everywhere, and exactly those rows are NaN"),
                Evidence("with a masked softmax the step is finite", kind="trial", trial=4),
            ),
            fix=Fix(
                text="give the row one valid key, or use nantrap.ops.masked_softmax(scores, mask)",
                diff="-    weights = scores.softmax(dim=-1)\n+    weights = nantrap.ops.masked_softmax(scores, mask)",
                verified=True,
                trial=4,
            ),
        ),
    ),
    samples=(2,),
    frames=(
        Frame("aten.bmm", dtype="float16", absmax=31.25),
        Frame("aten.mul", dtype="float16", absmax=3.9),
        Frame("aten._softmax", dtype="float16", nonfinite=28, origin=True),
    ),
    action=Action.SKIP,
    loss=math.nan,
    lr=(1e-4,),
    bundle="runs/exp1/incidents/001204-r0",
    restored=True,
    inputs=(
        Finding("batch", "image", "data", stats=TensorStats((4, 3), "float32", 12, min=-2.25, max=1.5, absmax=2.25)),
        Finding("batch", "label", "data", stats=TensorStats((4,), "int64", 4, min=0, max=9, absmax=9)),
    ),
)

GUESS = Incident(
    step=17,
    rank=3,
    phase="backward",
    module="head",
    op="aten.mm",
    node="AddmmBackward0",
    findings=(Finding("gradient", "head.weight", "backward", stats=TensorStats((4,), "float32", 4, nan=1, posinf=2)),),
    causes=(
        Cause(
            "exploding_gradient",
            confidence=0.5,
            summary="the gradients exploded in head while the loss stayed bounded",
            evidence=(Evidence("the gradient norm went 1 -> 1e+04 -> nan", kind="history"),),
            fix=Fix(text="clip the gradients (max_grad_norm=1.0)"),
        ),
        Cause("lr_too_high", confidence=0.4),
        Cause("bad_input_data", confidence=0.3),
        Cause("hardware_fault", confidence=0.2),
    ),
    action=Action.STOP,
    loss=2.5,
    lr=(0.1, 0.01, 0.001, 0.0001),
    notes=("the replay differs: the loss was 2.5 and is 2.25 in the replay",),
)

BARE = Incident(
    step=0,
    phase="forward",
    op="aten.lgamma",
    findings=(Finding("loss", "loss", "forward", value=math.inf),),
    action=Action.APPLY,
    loss=math.inf,
)


def text(expected: str) -> str:
    return textwrap.dedent(expected).strip("\n")


def test_a_proven_cause_with_a_verified_fix() -> None:
    assert render_incident(MASKED) == text(
        """
        error[NT203]: softmax over a row in which every position is masked gave NaN
          --> model.py:41 in Attention.forward
           |
        41 |     weights = scores.softmax(dim=-1)
           |               ^^^^^^^^^^^^^^^^^^^^^^ 28 of 1,568 values are NaN
        help: give the row one valid key, or use nantrap.ops.masked_softmax(scores, mask): verified, the step is finite with it (trial 4)
              -    weights = scores.softmax(dim=-1)
              +    weights = nantrap.ops.masked_softmax(scores, mask)
           = proof:  7 of 392 rows are -inf everywhere, and exactly those rows are NaN
           = proof:  with a masked softmax the step is finite (trial 4)
           = where:  step 1,204, rank 0, forward, blocks.3.attn.softmax, aten._softmax, float16
           = found:  gradient blocks.3.attn.q.weight: 64 of 64 values are NaN
           = risk:   medium: without a fix it can come back in any later step
           = sample: 2
           = batch:  image 4×3 float32 from -2.25 to 1.5, label 4 int64 from 0 to 9; all finite
           = before: bmm 31.2 -> mul 3.9 -> _softmax
           = did:    nantrap skipped the step and restored the training state
        more: nantrap explain NT203 · bundle: runs/exp1/incidents/001204-r0
        """  # noqa: E501
    )


def test_printing_an_incident_shows_the_diagnostic() -> None:
    assert str(MASKED) == render_incident(MASKED)


def test_a_guess_is_called_a_guess() -> None:
    assert render_incident(GUESS) == text(
        """
        error[NT502]: the gradients exploded in head while the loss stayed bounded (a guess: not proven)
        help: clip the gradients (max_grad_norm=1.0)
           = hint:  the gradient norm went 1 -> 1e+04 -> nan
           = where: step 17, rank 3, backward, head, aten.mm, AddmmBackward0
           = found: gradient head.weight: 1 of 4 values is NaN, 2 are +Inf
           = did:   nantrap stopped the run
           = note:  the replay differs: the loss was 2.5 and is 2.25 in the replay
        also possible: NT501 lr_too_high, NT101 bad_input_data
        more: nantrap explain NT502
        """
    )


def test_without_a_diagnosis() -> None:
    assert render_incident(BARE) == text(
        """
        error[NT000]: forward: aten.lgamma the loss is +Inf
           = where: step 0, rank 0, forward, aten.lgamma
           = did:   the step was applied
        more: nantrap explain NT000
        """
    )


@pytest.mark.parametrize("incident", [MASKED, GUESS, BARE], ids=["masked", "guess", "bare"])
def test_colours_change_no_word(incident: Incident) -> None:
    coloured = render_incident(incident, color=True)
    assert "\x1b[1;31merror" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == render_incident(incident)


def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    assert "\x1b[" not in render_incident(BARE, color=None), "stderr is no terminal here"
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in render_incident(BARE, color=None)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in render_incident(BARE, color=None)


def test_one_line() -> None:
    assert one_line(MASKED, "1 of 5 in a row") == (
        "step 1,204 skipped: forward: [NT203] softmax over a row in which every position is masked gave NaN in "
        "blocks.3.attn.softmax; lr 0.0001; 1 of 5 in a row"
    )
    assert one_line(GUESS) == (
        "step 17 stopped: backward: [NT502] the gradients exploded in head while the loss stayed bounded; "
        "lr 0.1, 0.01, 0.001"
    )
    assert one_line(BARE) == "step 0 applied: forward: aten.lgamma the loss is +Inf"


def test_one_line_without_a_cause_names_what_was_found() -> None:
    bad = Finding("optimizer_state", "exp_avg of 0.weight", "state", stats=TensorStats((2,), "float32", 2, nan=1))
    assert one_line(Incident(step=3, phase="state", findings=(bad,), action=Action.ROLLBACK, same_as=2)) == (
        "step 3 rolled back: state: optimizer state exp_avg of 0.weight: 1 of 2 values is NaN; looks like step 2"
    )
    terms = tuple(Finding("term", name, "forward", value=math.nan) for name in ("kl", "recon"))
    assert one_line(Incident(step=3, findings=terms, loss=math.nan)) == (
        "step 3 skipped: forward: loss terms kl, recon are NaN"
    )
    heads = (Finding("term", "head3", "backward", value=0.5, note="its gradient is not finite"),)
    assert one_line(Incident(step=3, phase="backward", findings=heads, loss=0.7), "head3 left out") == (
        "step 3 skipped: backward: the gradient of loss term head3 is not finite; head3 left out"
    )


def test_bad_loss_terms_are_named() -> None:
    findings = (
        Finding("term", "kl", "forward", value=float("nan")),
        Finding("term", "heads[3]", "forward", value=float("-inf")),
    )
    assert "   = terms: kl NaN, heads[3] -Inf\n" in render_incident(Incident(step=3, findings=findings))


def test_all_loss_terms_are_shown_good_and_bad() -> None:
    shown = render_incident(Incident(step=3, terms={"recon": 0.3125, "kl": math.nan}))
    assert "   = terms: recon 0.3125, kl NaN\n" in shown


def test_epoch_and_batch_are_shown_where_they_are_known() -> None:
    incident = Incident.from_dict({**Incident(step=1204, rank=1).to_dict(), "epoch": 3, "batch": 118})
    assert "= where: step 1,204, epoch 3, batch 118, rank 1, forward\n" in render_incident(incident)
    assert one_line(incident).endswith("the loss is NaN; epoch 3, batch 118")


def test_the_guilty_rank_comes_from_its_field() -> None:
    incident = Incident.from_dict({**Incident(step=4, rank=0, phase="backward").to_dict(), "origin_rank": 3})
    assert one_line(incident) == "step 4 skipped: it began on rank 3, in backward"
    assert "= where: step 4, it began on rank 3, backward\n" in render_incident(incident)


def test_what_the_guilty_rank_found_is_said_on_the_others() -> None:
    bad = Finding("gradient", "0.weight", "backward", stats=TensorStats((8, 6), "float32", 48, nan=1))
    incident = Incident(step=4, rank=0, origin_rank=1, phase="backward", findings=(bad,))
    assert one_line(incident) == (
        "step 4 skipped: it began on rank 1, backward: gradient 0.weight: 1 of 48 values is NaN"
    )


def test_the_rank_of_a_known_cause_is_said_on_the_others_alone() -> None:
    cause = Cause("bad_input_data", proven=True, confidence=1.0, summary="the batch is non-finite: x")
    incident = Incident(step=4, rank=1, origin_rank=1, bad_ranks=(1,), phase="data", causes=(cause,))
    assert one_line(incident) == "step 4 skipped: data: [NT101] the batch is non-finite: x"
    assert one_line(replace(incident, rank=0)) == (
        "step 4 skipped: it began on rank 1, data: [NT101] the batch is non-finite: x"
    )
    assert "= where: step 4, it began on rank 1, data\n" in render_incident(replace(incident, rank=0))
    both = replace(incident, origin_rank=0, bad_ranks=(0, 1))
    assert "began" not in one_line(both), "it began here too"
    assert "= where: step 4, rank 1, data, bad on ranks 0, 1\n" in render_incident(both)


def test_the_same_rate_of_several_groups_is_said_once() -> None:
    assert one_line(Incident(step=4, lr=(0.01, 0.01))).endswith("; lr 0.01")
    assert one_line(Incident(step=4, lr=(0.01, 0.01, 0.5))).endswith("; lr 0.01, 0.5")


def test_a_norm_that_overflowed_is_said_instead_of_a_finite_loss() -> None:
    note = "every gradient is finite, their norm is 4e+38, which overflowed to inf"
    incident = Incident(
        step=4, phase="backward", loss=0.5, findings=(Finding("grad_norm", "n", "backward", note=note),)
    )
    assert one_line(incident) == f"step 4 skipped: backward: {note}"


def test_the_report_of_another_rank_is_named_before_it_is_written(tmp_path: Path) -> None:
    incident = Incident(step=4, rank=0, origin_rank=1, bundle=str(tmp_path / "000004-r1"))
    assert f"report: {tmp_path / '000004-r1' / 'report.html'}" in render_incident(incident)


def test_the_bad_ranks_are_named() -> None:
    incident = Incident(step=4, rank=0, bad_ranks=(1, 3))
    assert "= where: step 4, rank 0, forward, bad on ranks 1, 3\n" in render_incident(incident)


def test_a_bad_probe_shows_everything_that_is_known_of_it() -> None:
    good = Probe("embedded", TensorStats((2, 4), "float32", 8, min=-1.0, max=2.0, mean=0.5, absmax=2.0))
    stats = TensorStats((2, 4, 6), "float16", 48, nan=6, posinf=1, min=-3.25, max=5.5, mean=0.125, absmax=5.5)
    bad = Probe("scores", stats, watch={"alpha": 0.25}, first_bad=True)
    empty = Probe("out", TensorStats((3,), "float32", 3, nan=3))
    shown = render_incident(Incident(step=3, probes=(good, bad, empty)))
    assert "   = probe: embedded: 8 finite values, absmax 2\n" in shown
    assert (
        "   = probe: scores: 6 of 48 values are NaN, 1 is +Inf, shape 2×4×6, float16; "
        "finite values from -3.25 to 5.5, mean 0.125, alpha 0.25, the first bad one\n"
    ) in shown
    assert "   = probe: out: 3 of 3 values are NaN, shape 3, float32; no finite value\n" in shown


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
@pytest.mark.parametrize("incident", [MASKED, GUESS, BARE], ids=["masked", "guess", "bare"])
def test_any_width_breaks_lines_between_words_only(incident: Incident, width: int) -> None:
    narrow, plain = render_incident(incident, width=width), render_incident(incident)
    words = re.findall(r"\S+", plain.replace(" · bundle", "\nbundle").replace("^", ""))
    for line in narrow.splitlines():
        assert len(line) <= width or len(line.split()) <= 2 or line.lstrip()[:1] in "+-", line
    if width >= 60:  # nothing was cropped
        shown = re.findall(r"\S+", narrow.replace(" · bundle", "\nbundle").replace("^", ""))
        assert [word for word in shown if word != "|"] == [word for word in words if word != "|"]


@pytest.mark.parametrize(
    ("diff", "width", "shown"),
    [
        ("-        return a.softmax(-1)\n+        return masked_softmax(a, -1)", 80, None),
        (
            "-        return a.softmax(-1)\n+        return masked_softmax(a, -1)",
            40,
            "      - return a.softmax(-1)\n      + return masked_softmax(a, -1)",
        ),
        (
            "@@ -1 +1 @@ in a class with a long name\n     if x:\n-        y = 1\n+        y = 2",
            40,
            "      @@ -1 +1 @@ in a class with a long name\n        if x:\n      -     y = 1\n      +     y = 2",
        ),
        ("x = nantrap.ops.masked_softmax(scores, dim=-1)", 40, None),
    ],
)
def test_a_change_loses_the_indentation_that_a_narrow_terminal_has_no_room_for(
    diff: str, width: int, shown: str | None
) -> None:
    fix = Fix("use it", diff=diff) if diff[0] in "-@" else Fix("use it", code=diff)
    incident = Incident(step=3, phase="forward", causes=(Cause("softmax_fully_masked_row", fix=fix),))
    expected = shown or "\n".join(f"      {line}" for line in diff.splitlines())
    assert expected in render_incident(incident, width=width)


def test_a_long_path_stays_whole_and_the_function_goes_to_the_next_line() -> None:
    file = "/home/someone/projects/experiments/attention/model_with_masks.py"
    source = Source(file, 41, "MaskedAttention.forward", "    return scores.softmax(-1)", 11, 29)
    incident = Incident(step=3, phase="forward", op="aten._softmax", source=source)
    assert f"  --> {file}:41 in MaskedAttention.forward\n" in render_incident(incident, width=110)
    narrow = render_incident(incident, width=80)
    assert f"  --> {file}:41\n      in MaskedAttention.forward\n" in narrow


@pytest.mark.parametrize(
    ("action", "restored", "said"),
    [
        (Action.SKIP, True, "nantrap skipped the step and restored the training state"),
        (Action.SKIP, None, "nantrap skipped the step"),  # not checked, so not claimed
        (Action.SKIP, False, "nantrap skipped the step, but could not restore everything (see the note)"),
        (Action.STOP, True, "nantrap stopped the run and restored the training state"),
        (Action.STOP, None, "nantrap stopped the run"),
        (Action.APPLY, None, "the step was applied"),
        (Action.ROLLBACK, None, "nantrap restored the last good state"),
    ],
)
def test_restored_is_said_only_where_it_was_checked(action: Action, restored: bool | None, said: str) -> None:
    assert done_text(Incident(step=1, action=action, restored=restored)) == said


@pytest.mark.parametrize(
    ("decided_by", "action", "restored", "said"),
    [
        ("script", Action.SKIP, True, "the script skipped the step; nantrap restored the training state"),
        ("script", Action.SKIP, None, "the script skipped the step"),
        (
            "script",
            Action.SKIP,
            False,
            "the script skipped the step; nantrap could not restore everything (see the note)",
        ),
        ("script", Action.APPLY, None, "nothing: the script uses this value"),
        ("scaler", Action.SKIP, None, "GradScaler skipped the step"),
        ("exception", Action.STOP, None, "nothing: nantrap passes the exception on"),
        ("exception", Action.SKIP, None, "nothing: nantrap passes the exception on"),
    ],
)
def test_a_step_that_nantrap_did_not_end_names_who_did(
    decided_by: Decider, action: Action, restored: bool | None, said: str
) -> None:
    incident = Incident(step=1, action=action, restored=restored, decided_by=decided_by)
    assert done_text(incident) == said


@pytest.mark.parametrize(
    ("risk", "said"),
    [
        ("high", "risk: high: without a fix it comes back, or spoils the weights unseen"),
        ("low", "risk: low: without a fix batches like this one are lost"),
        ("", None),  # a file that was written before risks existed
    ],
)
def test_the_risk_of_a_cause(risk: str, said: str | None) -> None:
    shown = render_incident(Incident(step=1, causes=(Cause("lr_too_high", risk=risk),)))
    assert (said in " ".join(shown.split())) if said else ("risk" not in shown)


def test_the_check_of_the_batch() -> None:
    bad = Finding("batch", "x", "data", stats=TensorStats((2, 2), "float32", 4, nan=1, min=0, max=1), samples=(1,))
    shown = render_incident(Incident(step=1, inputs=(bad,)))
    assert "= batch: x 2×2 float32: 1 of 4 values is NaN (sample 1)\n" in shown
    assert "all finite" not in shown
    argument = replace(bad, stats=TensorStats((2,), "float32", 2, min=0.0, max=1.0), note="an argument of the model")
    assert "= input: x 2 float32 from 0 to 1; all finite\n" in render_incident(Incident(step=1, inputs=(argument,)))


def test_80_columns() -> None:
    assert render_incident(MASKED, width=80) == text(
        """
        error[NT203]: softmax over a row in which every position is masked gave NaN
          --> model.py:41 in Attention.forward
        41 |     weights = scores.softmax(dim=-1)
           |               ^^^^^^^^^^^^^^^^^^^^^^ 28 of 1,568 values are NaN
        help: give the row one valid key, or use
              nantrap.ops.masked_softmax(scores, mask): verified, the step is finite
              with it (trial 4)
              -    weights = scores.softmax(dim=-1)
              +    weights = nantrap.ops.masked_softmax(scores, mask)
           = proof:  7 of 392 rows are -inf everywhere, and exactly those rows are NaN
           = proof:  with a masked softmax the step is finite (trial 4)
           = where:  step 1,204, rank 0, forward, blocks.3.attn.softmax,
                     aten._softmax, float16
           = found:  gradient blocks.3.attn.q.weight: 64 of 64 values are NaN
           = risk:   medium: without a fix it can come back in any later step
           = sample: 2
           = batch:  image 4×3 float32 from -2.25 to 1.5, label 4 int64 from 0 to 9;
                     all finite
           = before: bmm 31.2 -> mul 3.9 -> _softmax
           = did:    nantrap skipped the step and restored the training state
        more: nantrap explain NT203 · bundle: runs/exp1/incidents/001204-r0
        """
    )


def test_a_narrow_terminal_shows_a_change_without_its_comments() -> None:
    diff = "-    a = b / c  # the mean over\n+    a = safe_divide(b, c)  # the mean over\n-    d['  # ']"
    cause = replace(MASKED.causes[0], fix=Fix("divide safely", diff=diff))
    lines = render_incident(replace(MASKED, causes=(cause,)), width=40).splitlines()
    assert [line.strip() for line in lines if line.startswith(("      - ", "      + "))] == [
        "- a = b / c",
        "+ a = safe_divide(b, c)",
        "- d['  # ']",
    ]


def marks(source: Source, width: int | None = None) -> tuple[str, str]:
    lines = render_incident(Incident(step=1, source=source), width=width).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith(f"{source.line} | "))
    return lines[at], lines[at + 1]


def test_the_mark_is_under_the_expression_whatever_is_before_it() -> None:
    line = '\tx = f("größe") + torch.log(p)'  # a tab, and letters that take two bytes each
    column = line.encode().index(b"torch")
    shown, mark = marks(Source("m.py", 7, text=line, column=column, end_column=len(line.encode())))
    assert shown == '7 |     x = f("größe") + torch.log(p)'
    assert shown[mark.index("^") : mark.rindex("^") + 1] == "torch.log(p)"


def test_the_mark_covers_the_line_if_the_columns_cannot_be_right() -> None:
    for column, end in ((None, None), (5, 5), (40, 60), (9, 3)):
        shown, mark = marks(Source("m.py", 7, text="    y = x.log()", column=column, end_column=end))
        assert shown[mark.index("^") : mark.rindex("^") + 1] == "y = x.log()"


def test_a_long_line_is_cut_around_the_mark() -> None:
    line = " " * 24 + "value = " + "first + " * 12 + "torch.log(p)" + " + last" * 12
    column = line.index("torch")
    shown, mark = marks(Source("m.py", 7, text=line, column=column, end_column=column + 12), width=60)
    assert len(shown) <= 60
    assert shown[mark.index("^") : mark.rindex("^") + 1] == "torch.log(p)"
    assert shown.startswith("7 | ...")
    assert shown.endswith("...")


def test_nothing_in_a_name_reaches_the_terminal_as_a_command() -> None:
    evil = "a\x1b]0;owned\x07\x1b[2J\u202eb\r\n"
    incident = Incident(
        step=1,
        module=evil,
        op=evil,
        node=evil,
        source=Source(evil, 3, evil, evil),
        causes=(Cause(evil, summary=evil, evidence=(Evidence(evil),), fix=Fix(evil, diff=evil)), Cause(evil)),
        findings=(Finding("term", evil, "forward", value=1.0),),
        probes=(Probe(evil, TensorStats((1,), evil, 1, nan=1), watch={evil: 1.0}),),
        notes=(evil,),
        bundle=evil,
    )
    for shown in (render_incident(incident), render_incident(incident, width=60), one_line(incident, evil)):
        assert not set(shown.replace("\n", "")) & set("\x1b\x07\r\u202e")
    assert "a\\x1b]0;owned\\x07\\x1b[2J\\u202eb\\x0d\\x0a" in one_line(incident)
    assert "\x1b]" not in render_incident(incident, color=True)


def test_a_lone_last_word_takes_company() -> None:
    assert wrapped("one two three four five six", 23) == ["one two three four", "five six"]
    assert wrapped("use nantrap.ops.masked_mean(x, mask) here and there", 32) == [
        "use", "nantrap.ops.masked_mean(x, mask)", "here and there",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("environment", "links"),
    [
        ({}, False),
        ({"TERM": "xterm-256color"}, False),
        ({"TERM_PROGRAM": "iTerm.app"}, True),
        ({"VTE_VERSION": "6800"}, True),
        ({"VTE_VERSION": "4200"}, False),
        ({"TERM": "xterm-kitty"}, True),
        ({"TERM": "xterm-kitty", "FORCE_HYPERLINK": "0"}, False),
    ],
)
def test_links_only_where_the_terminal_can_show_them(environment: dict[str, str], links: bool) -> None:
    assert can_link(environment) is links


def test_paths_can_be_clicked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("FORCE_HYPERLINK", "1")
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "report.html").write_text("")
    shown = render_incident(replace(MASKED, bundle=str(tmp_path)), color=None)
    addresses = re.findall(r"\x1b\]8;[^;]*;([^\x1b]*)\x1b\\", shown)
    assert [a.rpartition("/")[2] for a in addresses if a] == ["model.py", "report.html"]
    assert all(a.startswith("file://") for a in addresses if a)
    assert f"report: {tmp_path}/report.html" in shown


def test_the_same_failure_has_the_same_fingerprint() -> None:
    assert fingerprint(MASKED) == fingerprint(replace(MASKED, step=9, samples=(4,)))
    assert fingerprint(MASKED) != fingerprint(replace(MASKED, module="blocks.4.attn"))
    assert fingerprint(MASKED) != fingerprint(GUESS)


def test_the_words_as_json() -> None:
    said = diagnostic(MASKED).to_dict()
    assert said["headline"] == "softmax over a row in which every position is masked gave NaN"
    assert said["source"]["place"] == "model.py:41 in Attention.forward"
    shown = render_incident(MASKED)
    assert all(note["text"] in shown for note in said["notes"])
    assert said["help"] in shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_long_lines_are_wrapped_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    line = "nantrap: step 3 skipped: forward: gradient encoder.layers.0.weight: 96 of 96 values are NaN; lr 0.01"
    terminal, pipe = Terminal(), io.StringIO()
    write_line(line, terminal)
    write_line(line, pipe)
    assert pipe.getvalue() == line + "\n"
    assert terminal.getvalue() == (
        "nantrap: step 3 skipped: forward: gradient\n"
        "  encoder.layers.0.weight: 96 of 96 values are NaN; lr 0.01\n"
    )  # fmt: skip


def test_a_terminal_without_colours_has_a_width_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setattr(sys, "stderr", Terminal())
    text = render_incident(BARE, color=None)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 40


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_the_width_is_that_of_standard_error_though_standard_output_is_a_pipe() -> None:
    import fcntl
    import pty
    import struct
    import termios

    _, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 64, 0, 0))
    code = "from nantrap.report.terminal import terminal_width; print(terminal_width())"
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=terminal, env=environment, timeout=60, check=True
    )
    assert done.stdout == b"64\n"
