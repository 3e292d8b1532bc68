"""The diagnostic in the terminal: its exact text for fixed incidents, with and without colours."""

from __future__ import annotations

import math
import re
import textwrap

import pytest

from nantrap.incident import Action, Cause, Evidence, Finding, Fix, Frame, Incident, Source, TensorStats
from nantrap.report import one_line, render_incident

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
           = where: step 1,204, rank 0, forward, blocks.3.attn.softmax, aten._softmax, float16
           = found: gradient blocks.3.attn.q.weight: 64 of 64 values are NaN
           = proof: 7 of 392 rows are -inf everywhere, and exactly those rows are NaN
           = proof: with a masked softmax the step is finite (trial 4)
           = sample: 2
           = before: bmm 31.2 -> mul 3.9 -> _softmax
           = did: step skipped, everything as before
        help: give the row one valid key, or use nantrap.ops.masked_softmax(scores, mask): verified, the step is finite with it (trial 4)
              -    weights = scores.softmax(dim=-1)
              +    weights = nantrap.ops.masked_softmax(scores, mask)
        more: nantrap explain NT203 · bundle: runs/exp1/incidents/001204-r0
        """  # noqa: E501
    )


def test_a_guess_is_called_a_guess() -> None:
    assert render_incident(GUESS) == text(
        """
        error[NT502]: the gradients exploded in head while the loss stayed bounded (a guess: not proven)
           = where: step 17, rank 3, backward, head, aten.mm, AddmmBackward0
           = found: gradient head.weight: of 4 values 1 NaN, 2 +Inf
           = hint: the gradient norm went 1 -> 1e+04 -> nan
           = did: run stopped, everything as before the step
           = note: the replay differs: the loss was 2.5 and is 2.25 in the replay
        help: clip the gradients (max_grad_norm=1.0)
        also possible: NT501 lr_too_high, NT101 bad_input_data
        more: nantrap explain NT502
        """
    )


def test_without_a_diagnosis() -> None:
    assert render_incident(BARE) == text(
        """
        error[NT000]: forward: aten.lgamma the loss is +Inf
           = where: step 0, rank 0, forward, aten.lgamma
           = did: step applied
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
        "step 3 skipped: forward: loss term kl, recon is NaN"
    )


def test_bad_loss_terms_are_named() -> None:
    findings = (
        Finding("term", "kl", "forward", value=float("nan")),
        Finding("term", "heads[3]", "forward", value=float("-inf")),
    )
    assert "   = found: loss term kl is NaN, heads[3] is -Inf\n" in render_incident(Incident(step=3, findings=findings))
