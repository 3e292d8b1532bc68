"""The programs of the zoo get the same answers on the device as on the CPU, but for those that are listed by reason.

`test_own_process.py` runs all of them, slowly.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from device.zoo_on_device import BUILT_THERE, HERE, MOVED, NO_REASON, expected, reasons, run
from zoo.loading import find


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("second_moment_decay_before_its_offset", MOVED),  # its optimizer keeps one number on the host
        ("gradient_hook_divides_by_norm_zero", BUILT_THERE),  # hooks of parameters are not moved
    ],
)
def test_the_answer_is_that_of_the_cpu(name: str, way: str) -> None:
    (path,) = find(name)
    assert run(path, "attempt", way) == run(path, "attempt", HERE)


def test_every_difference_has_a_reason_that_is_documented() -> None:
    text = (Path(__file__).parents[2] / "docs" / "limits.md").read_text(encoding="utf-8")
    assert NO_REASON not in reasons()
    for reason, programs in reasons().items():
        assert f"| {reason} | {sum('attempt' in said for said in programs.values())} |" in text
    assert {f"{path.parent.name}/{path.stem}" for path in find()} >= expected("attempt").keys()
