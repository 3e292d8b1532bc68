"""The trace of a step that several ranks run together: an error in it must not end the step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from nantrap.locate.replay.together import SharedTrace
from nantrap.locate.trace import Registered


@pytest.mark.parametrize("part", ["before", "after"])
def test_an_error_in_the_trace_ends_the_recording_and_not_the_step(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise ValueError("no such memory")

    trace = SharedTrace(nn.Identity(), Registered())
    total = torch.zeros(3)
    with trace:
        torch.ones(3).exp()
        recorded = len(trace.ops)
        monkeypatch.setattr(trace, part, fails)
        total.add_(1.0)
        monkeypatch.undo()
        total.add_(1.0)
    assert trace.trouble == "ValueError: no such memory"
    assert total.tolist() == [2.0, 2.0, 2.0], "each operation ran once"
    assert len(trace.ops) == recorded, "nothing is recorded after the error"


def test_an_error_of_the_operation_itself_is_raised() -> None:
    trace = SharedTrace(nn.Identity(), Registered())
    with trace, pytest.raises(RuntimeError):
        torch.ones(2, 3).mm(torch.ones(2, 3))
    assert not trace.trouble


def test_captures_name_the_operation_itself() -> None:
    trace = SharedTrace(nn.Identity(), Registered())
    with trace:
        torch.zeros(2).log()
    (capture,) = trace.captures.values()
    assert capture.func is torch.ops.aten.log.default
