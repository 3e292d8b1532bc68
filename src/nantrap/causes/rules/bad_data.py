"""NT1xx: non-finite values and sentinels in the batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nantrap.causes.claim import Claim
from nantrap.causes.extremes import is_sentinel, largest_input, out_of_range
from nantrap.causes.facts import describe, listed, without
from nantrap.causes.registry import rule
from nantrap.incident import Trial

if TYPE_CHECKING:
    from nantrap.causes.case import Case


@rule("bad_input_data")
def bad_input_data(case: Case) -> Claim | None:
    """The batch holds values that no model can train on."""
    external = case.external
    seen_first = case.capture is None or (case.made == "nan" and not all(t.isfinite().all() for t in case.inputs))
    if external is None and seen_first and (given_bad := case.bad_model_input()) is not None:
        name, tensor = given_bad
        return Claim(
            "hint",
            f"the model's input is non-finite before its forward pass: {name}",
            (f"{name} {describe(tensor)}",),
            help=f"clean or drop the sample where {name} is made",
        )
    if external is None and case.location.constant is not None and case.location.constant[0]:
        name, tensor = case.location.constant
        return Claim(
            "hint",
            f"a tensor that the loss reads without a gradient is non-finite: {name}",
            (f"{name} {describe(tensor)}",),
            help=f"look where {name} is made: it was non-finite before the step",
        )
    if external is None or external.kind != "batch":
        return _sentinel(case)
    finding = next((f for f in case.location.findings if f.kind == "batch"), None)
    samples = finding.samples if finding else ()
    noun = "sample" if len(samples) == 1 else "samples"
    which = f", {noun} {listed(samples)}" if samples else ""
    trial: Trial | None = None
    guilty = case.location.samples.guilty
    if case.location.samples.rest_is_finite:
        trial = case.lab.without_samples(guilty, case.location.samples.size or 0)
    given = case.was_given(external.tensor)
    if (given == "argument" and case.loop_is_finite) or case.made_from_finite(external.tensor):
        case.notes.append(
            f"{external.name} of the model is non-finite, though what the loop took from its loader is finite: the "
            "code between the two made it"
        )
        return None
    what = {
        "loader": "the batch is non-finite before the forward pass"
        + ("" if external.name == "batch" else f": {external.name}"),
        "argument": f"the model's input is non-finite before its forward pass: {external.name}",
    }.get(given, f"a tensor that the loss reads without a gradient is non-finite: {external.name}")
    return Claim(
        "measured" if given == "loader" else "hint",
        what,
        (f"{external.name} {describe(external.tensor)}{' before the forward pass' if given else ''}{which}",),
        trial=trial,
        shows=f"{without(guilty, samples)} the step is finite",
        help=f"clean or drop the sample where {external.name} is made",
    )


def _sentinel(case: Case) -> Claim | None:
    """A value that marks a missing one (1e30, the largest float): finite, and no measurement."""
    found = largest_input(case)
    if found is None or not is_sentinel(found.tensor, found.value):
        return None
    targets = [call.args[1] for call in case.calls_of("aten.binary_cross_entropy")]
    if any(target.shape == found.tensor.shape for target in targets):
        return None  # that loss has a range of its own: see label_out_of_range
    return out_of_range(
        case,
        found,
        f"the batch holds a value that is no measurement: {found.name} reaches {found.value:.3g}",
        "replace the sentinel or missing-value code before the data reach the model",
    )
