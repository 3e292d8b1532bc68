"""`/metrics`: the state of every run in the text format of Prometheus."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from nantrap.report.serving.cache import StepCounts
from nantrap.report.serving.state import ORDER
from nantrap.report.serving.summary import Summary

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics(runs: Iterable[tuple[Summary, StepCounts | None]]) -> str:
    """One gauge for each number of each run."""
    found = list(runs)
    return "\n".join(_lines(found)) + "\n"


def _lines(runs: list[tuple[Summary, StepCounts | None]]) -> Iterator[str]:
    """The metrics of all runs as Prometheus reads them."""
    yield from _gauge("nantrap_step", "the last step that was attempted", ((s, "", s.step) for s, _ in runs))
    yield from _gauge("nantrap_loss", "the loss of the last step", ((s, "", s.loss) for s, _ in runs))
    yield from _gauge(
        "nantrap_grad_norm", "the gradient norm of the last step", ((s, "", s.grad_norm) for s, _ in runs)
    )
    yield from _gauge("nantrap_learning_rate", "the learning rate of the last step", ((s, "", s.lr) for s, _ in runs))
    scaled = ((s, "", s.scale) for s, _ in runs if s.scale is not None)
    yield from _gauge("nantrap_loss_scale", "the loss scale of the last step", scaled)
    yield from _gauge(
        "nantrap_last_line_seconds", "when the journal was last written", ((s, "", s.modified) for s, _ in runs)
    )
    for name, text in (
        ("steps", "attempted"), ("applied", "applied"), ("skipped", "skipped"), ("rollbacks", "rolled back"),
        ("stops", "stopped by the guard"), ("incidents", "with an incident"),
    ):  # fmt: skip
        counted = ((s, "", getattr(c, name)) for s, c in runs if c is not None)
        yield from _gauge(f"nantrap_{name}", f"steps {text}, as far as the journal was read", counted)
    causes = (
        (s, f',cause="{_label(cause)}"', n) for s, c in runs if c is not None for cause, n in sorted(c.causes.items())
    )
    yield from _gauge("nantrap_incidents_by_cause", "incidents by cause, as far as the journal was read", causes)
    states = ((s, f',state="{word}"', float(s.state.word == word)) for s, _ in runs for word in ORDER)
    yield from _gauge("nantrap_state", "1 for the state of the run, 0 for all others", states)


def _gauge(name: str, text: str, samples: Iterable[tuple[Summary, str, float]]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} gauge"
    for summary, labels, number in samples:
        yield f'{name}{{run="{_label(summary.name)}"{labels}}} {_number(number)}'


def _number(number: float) -> str:
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "+Inf" if number > 0 else "-Inf"
    return repr(number)


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
