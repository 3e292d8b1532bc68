"""Which fault happens when: the text, the defaults, the errors, and the same steps every time."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nantrap.errors import UsageError
from nantrap.faults import Fault, parse_faults


def test_text() -> None:
    assert parse_faults("grad:0.01,seed=1") == (Fault("grad", rate=0.01, seed=1),)
    assert parse_faults("activation:step=5,value=inf,where=blocks.*") == (
        Fault("activation", steps=(5,), value="inf", where="blocks.*"),
    )
    assert parse_faults("param:steps=3/9,rank=1; bitflip:step=4,bit=30") == (
        Fault("param", steps=(3, 9), rank=1),
        Fault("bitflip", steps=(4,), bit=30),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no fault is named; give for example grad:0.01,seed=1"),
        ("gard:0.01", "there is no fault 'gard'; choose from batch, activation, loss, grad"),
        ("grad", "say when grad happens: grad:0.01"),
        ("grad:2", "2 is not a probability"),
        ("grad:often", "grad:often: rate is often, not a number; a fault is written like"),
        ("grad:step=x", "grad:step=x: step is x, not a whole number; a fault is written like"),
        ("grad:step=", "grad:step=: step is empty, not a whole number"),
        ("grad:0.1,stop=3", "stop is not an option"),
        ("grad:0.1,value=zero", "cannot have the value 'zero'; choose nan, inf, -inf, huge"),
    ],
)
def test_wrong_text(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_faults(text)


def test_a_rate_gives_the_same_steps_every_time() -> None:
    steps = [step for step in range(1000) if Fault("grad", rate=0.02, seed=1).chance(step, 0)]
    assert steps == [step for step in range(1000) if Fault("grad", rate=0.02, seed=1).chance(step, 0)]
    assert 8 <= len(steps) <= 35
    assert steps != [step for step in range(1000) if Fault("grad", rate=0.02, seed=2).chance(step, 0)]


def test_one_rank_only() -> None:
    fault = Fault("loss", steps=(3,), rank=1)
    assert fault.chance(3, 0) is None
    assert fault.chance(3, 1) is not None


def test_a_plan_needs_no_torch() -> None:
    code = "import sys, nantrap.faults; nantrap.faults.parse_faults('grad:0.1'); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
