"""The five systems: historic faults that can be seen before training are seen, and the repaired ones are clean."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from nantrap.doctor.data import check_data
from nantrap.doctor.preflight.edges import check_edges
from nantrap.doctor.preflight.subject import Subject, make_subject, try_step
from nantrap_systems import load_system


def subject(name: str, fault: str | None) -> Subject:
    system = load_system(name)

    def factory() -> dict[str, Any]:
        run = system.run(fault=system.fault(fault) if fault else None)
        return {"model": run.model, "optimizer": run.optimizer, "batch": run.window(0)[0], "loss": run.loss}

    return make_subject(factory, {})


def findings(name: str, fault: str | None, monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str | None]]:
    system = load_system(name)
    run = system.run(fault=system.fault(fault) if fault else None)
    module = ModuleType("batches_of_a_system")
    module.batches = lambda: [run.window(step)[0] for step in range(60)]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "batches_of_a_system", module)
    return {(each.slug, each.field) for each in check_data("batches_of_a_system:batches").findings}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fault", "expected"),
    [
        ("radiodiff", None, set()),
        ("radiodiff", "nan_pixel", {("non_finite", "image")}),
        ("radiodiff", "png_scale", {("outlier", "image"), ("outlier", "condition")}),
        ("radiodiff", "empty_first_batch", {("constant_sample", "image")}),
        ("temi", None, set()),
        ("temi", "nan_row", {("non_finite", "x")}),
        ("pixeldlm", None, set()),
        ("pixeldlm", "mask_product", {("non_finite", "image")}),
    ],
)
def test_faults_in_the_data(
    name: str, fault: str | None, expected: set[tuple[str, str | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert findings(name, fault, monkeypatch) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fault", "edge", "cause"),
    [
        ("pixeldlm", "short_text", "all masked", "softmax_fully_masked_row"),
        ("latentdlm", "zero_attention_mask", "all masked", "softmax_fully_masked_row"),
        ("temi", "constant_embeddings", "zeros", "division_by_zero"),
    ],
)
def test_faults_at_edge_inputs(name: str, fault: str, edge: str, cause: str) -> None:
    found = {check.name: check for check in check_edges(subject(name, fault))}
    assert found[f"edge: {edge}"].values["cause"] == cause
    repaired = {check.name: check for check in check_edges(subject(name, None))}
    assert repaired[f"edge: {edge}"].status == "ok"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "cause"), [("large_weights", "log_of_zero"), ("zero_prototypes", "division_by_zero")]
)
def test_faults_of_the_initialisation(fault: str, cause: str) -> None:
    assert try_step(subject("temi", fault)).cause == cause
    assert try_step(subject("temi", None)).finite
