"""The records of a trace: what an operation was given and gave, and how the diagnosis corrects them."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.utils._python_dispatch import _push_mode

from nantrap.locate.torch_private import DispatchMode, leave_mode, modes_running
from nantrap.locate.trace import Registered, Trace


def test_an_operation_is_recorded_with_what_it_wrote() -> None:
    trace = Trace(nn.Identity(), Registered())
    values = torch.tensor([1.0, 0.0, -3.0])
    with trace:
        values.log().exp()
    log, exp = trace.ops
    assert (log.name, log.made, log.nan, log.inf, log.bad, log.values) == ("aten.log", "nan", True, True, 2, 3)
    assert (exp.name, exp.made, exp.sources) == ("aten.exp", None, (0,))
    assert log.dtype == exp.dtype == "float32"
    assert [capture.op for capture in trace.captures.values()] == [log]


def test_memory_that_is_read_before_it_is_written_marks_the_operation_that_allocated_it() -> None:
    trace = Trace(nn.Identity(), Registered())
    with trace:
        memory = torch.empty(4)
        view = memory.view(2, 2)
        memory.numpy()[:] = math.nan  # by no operation: as memory that was never written may hold
        total = view.sum()
    assert trace.origins_of(total) == {0}
    assert trace.ops[0].made == "uninitialised"


def test_revised_records_are_those_of_the_captures_too() -> None:
    trace = Trace(nn.Identity(), Registered())
    with trace:
        torch.zeros(2).log()
        first = len(trace.ops)
        torch.zeros(3).log()
    trace.revise(lambda op: op._replace(phase="backward"), since=first)
    assert [op.phase for op in trace.ops] == ["forward"] * first + ["backward"] * (len(trace.ops) - first)
    assert all(capture.op is trace.ops[index] for index, capture in trace.captures.items())


def test_a_mode_that_torch_put_on_again_after_it_had_ended_can_be_ended() -> None:
    """Torch takes a mode off while it handles an operation, in which a collected guard may end it."""
    mode = DispatchMode()
    _push_mode(mode)
    assert leave_mode(mode)
    assert not modes_running()
    assert not leave_mode(mode)
