"""NaN in every dtype that has it is found; what no rule reads is said, and never taken for clean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from nantrap.doctor.data import check_data

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # complex32, nested and quantised tensors of PyTorch

FLOATS = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz",
    "complex64", "complex128", "complex32",
)  # fmt: skip


def slugs(path: Path) -> list[tuple[str, tuple[int, ...]]]:
    return [(finding.slug, finding.indices) for finding in check_data(path).findings]


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("turned", [False, True])
def test_nan_is_found_in_every_dtype(tmp_path: Path, name: str, turned: bool) -> None:
    values = torch.randn(6, 40).clamp(-100, 100)
    good, bad = values.clone(), values.clone()
    bad[4, 7] = float("nan")
    for label, each, expected in (("good", good, []), ("bad", bad, [("non_finite", (4,))])):
        made = each.to(getattr(torch, name))
        torch.save(made.mT.contiguous().mT if turned else made, tmp_path / f"{label}.pt")
        report = check_data(tmp_path / f"{label}.pt")
        assert [(finding.slug, finding.indices) for finding in report.findings] == expected
        assert report.samples == 6
        assert report.notes == ()
        (span,) = report.spans
        assert abs(span.mean) < 1


def test_a_tensor_of_several_parts_is_judged_by_its_values(tmp_path: Path) -> None:
    place = torch.tensor([[0, 3, 5], [1, 2, 0]])
    for label, number in (("good", 2.5), ("bad", float("nan"))):
        values = torch.tensor([1.0, number, 2.0])
        torch.save(torch.sparse_coo_tensor(place, values, (6, 4)), tmp_path / f"{label}-sparse.pt")
        torch.save(torch.nested.nested_tensor([values[:2], torch.ones(3)]), tmp_path / f"{label}-nested.pt")
    for kind in ("sparse", "nested"):
        assert slugs(tmp_path / f"good-{kind}.pt") == []
        assert slugs(tmp_path / f"bad-{kind}.pt") == [("non_finite", (1,))]
        (note,) = check_data(tmp_path / f"bad-{kind}.pt").notes
        parts = "stored in parts (sparse, nested or quantised)"
        assert note.endswith(f"its tensor: {parts}; these values are judged one by one, not its samples")


def test_what_no_rule_reads_is_said(tmp_path: Path) -> None:
    quantised = torch.quantize_per_tensor(torch.randn(9, 3), 0.1, 0, torch.qint8)
    torch.save({"x": torch.randn(9, 3), "q": quantised}, tmp_path / "a.pt")
    report = check_data(tmp_path / "a.pt")
    assert report.findings == ()
    assert report.notes == (f"{tmp_path / 'a.pt'}: q: the values (qint8) were not judged",)
    np.save(tmp_path / "b.npy", np.zeros(9, dtype=[("a", "f4"), ("b", "i4")]))
    (note,) = check_data(tmp_path / "b.npy").notes
    assert note == f"{tmp_path / 'b.npy'}: its values ([('a', '<f4'), ('b', '<i4')]) were not judged"
    np.save(tmp_path / "c.npy", np.array(["a", "b"] * 9))
    (note,) = check_data(tmp_path / "c.npy").notes
    assert note == f"{tmp_path / 'c.npy'} holds no numbers: only whether it can be read was checked"
