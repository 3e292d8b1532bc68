"""Every rule of the data check: it fires exactly where its row in the contract says, and nowhere near it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nantrap.doctor.data import DataOptions, check_data

Arrays = dict[str, Any]
Found = set[tuple[str, str | None, tuple[int, ...]]]


def found(path: Path, **options: Any) -> Found:
    report = check_data(path, options=DataOptions(**options))
    return {(finding.slug, finding.field, finding.indices[:20]) for finding in report.findings}


def normal(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def ids(*shape: int, high: int = 100) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).integers(2, high, size=shape)


def with_values(array: np.ndarray[Any, Any], values: dict[Any, Any]) -> np.ndarray[Any, Any]:
    array = array.copy()
    for place, value in values.items():
        array[list(place) if isinstance(place, tuple) and len(place) > 2 else place] = value
    return array


def constant_rows(*rows: int, count: int = 40) -> np.ndarray[Any, Any]:
    return with_values(normal(count, 16), {row: 0.5 + row for row in rows})


FIRES: dict[str, tuple[Arrays, dict[str, Any], Found]] = {
    "nan": ({"x": with_values(normal(30, 4), {(7, 2): np.nan})}, {}, {("non_finite", "x", (7,))}),
    "frames of a video": ({"frames": constant_rows(7).reshape(40, 4, 4)}, {}, {("constant_sample", "frames", (7,))}),
    "inf": ({"x": with_values(normal(30, 4), {(7, 2): -np.inf})}, {}, {("non_finite", "x", (7,))}),
    "nan in a regression target": (
        {"target": with_values(normal(30), {3: np.nan})},
        {},
        {("non_finite", "target", (3,))},
    ),
    "beyond half": (
        {"x": with_values(5e3 + normal(30, 4), {(9, 0): 70000.0})},
        {"dtype": "float16"},
        {("overflows_half", "x", (9,))},
    ),
    "51 times the median": ({"x": with_values(np.ones(9, "f4"), {3: 51.0, 4: 2})}, {}, {("outlier", "x", (3,))}),
    "a negative outlier": ({"x": with_values(np.ones(9, "f4"), {3: -51.0})}, {}, {("outlier", "x", (3,))}),
    "constant samples": ({"x": constant_rows(4, 17)}, {}, {("constant_sample", "x", (4, 17))}),
    "constant field": ({"x": np.full(16, 3.0, "f4")}, {}, {("constant_field", "x", ())}),
    "constant labels": ({"labels": np.zeros(16, int)}, {}, {("constant_field", "labels", ())}),
    "float copies": (
        {"x": (lambda a: with_values(a, {9: a[2], 11: a[2]}))(normal(30, 16))},
        {},
        {("duplicate_sample", "x", (9, 11))},
    ),
    "token copies": (
        {"input_ids": (lambda a: with_values(a, {5: a[4]}))(ids(30, 16))},
        {},
        {("duplicate_sample", "input_ids", (5,))},
    ),
    "fields of different length": (
        {"x": normal(30, 4), "y": ids(29)},
        {},
        {("shape_mismatch", "y", (29,))},
    ),
    "label too large": (
        {"x": normal(30, 4), "labels": with_values(ids(30, high=5), {3: 5, 8: -1, 9: -100})},
        {"classes": 5},
        {("label_out_of_range", "labels", (3, 8))},
    ),
    "label field by option": (
        {"x": normal(30, 4), "genre": with_values(ids(30, high=5), {3: 5})},
        {"classes": 5, "labels": "genre"},
        {("label_out_of_range", "genre", (3,))},
    ),
    "token too large": (
        {"input_ids": with_values(ids(30, 8), {(3, 7): 100, (9, 0): -1})},
        {"vocab": 100},
        {("token_out_of_range", "input_ids", (3, 9))},
    ),
    "ignored token id": (
        {"input_ids": with_values(ids(30, 8), {(3, 7): -100})},
        {"vocab": 100},
        {("token_out_of_range", "input_ids", (3,))},
    ),
    "empty mask": (
        {"attention_mask": with_values(np.ones((30, 8), int), {2: 0, (3, 1): 0})},
        {},
        {("empty_mask", "attention_mask", (2,))},
    ),
    "empty mask by option": (
        {"valid": with_values(np.ones((30, 8), bool), {2: False})},
        {"mask": "valid"},
        {("empty_mask", "valid", (2,))},
    ),
    "ignored labels": (
        {"labels": with_values(ids(30, 8), {4: -100, (5, 1): -100})},
        {},
        {("all_labels_ignored", "labels", (4,))},
    ),
    "ctc repeats": (
        {
            "input_lengths": np.full(4, 5),
            "targets": np.array([[1, 2, 3, 4, 5], [1, 1, 2, 2, 0], [1, 1, 2, 3, 4], [9, 8, 7, 6, 0]]),
            "target_lengths": np.array([5, 4, 5, 4]),
        },
        {},
        {("ctc_infeasible", "targets", (1, 2))},
    ),
    "ctc lengths only": (
        {"input_lengths": np.array([5, 9, 3]), "target_lengths": np.array([6, 9, 3])},
        {},
        {("ctc_infeasible", "target_lengths", (0,))},
    ),
    "ctc concatenated targets": (
        {
            "input_lengths": np.array([3, 3]),
            "targets": np.array([1, 2, 3, 4, 4, 5]),
            "target_lengths": np.array([3, 3]),
        },
        {},
        {("ctc_infeasible", "targets", (1,))},
    ),
    "unscaled images": (
        {"images": np.round(np.clip(120 + 60 * normal(20, 3, 8, 8), 0, 255))},
        {},
        {("scale_suspect", "images", tuple(range(20)))},
    ),
}

SILENT: dict[str, tuple[Arrays, dict[str, Any]]] = {
    "healthy": ({"x": normal(30, 4), "labels": ids(30, high=5)}, {"classes": 5}),
    "minus inf in an additive mask": (
        {"attn_mask": np.where(np.arange(8)[None] > np.arange(1, 9)[:, None], -np.inf, 0.0)},
        {},
    ),
    "exactly the limit of half": (
        {"x": with_values(5e3 + normal(30, 4), {(9, 0): 65504.0})},
        {"dtype": "float16"},
    ),
    "beyond half, but float32": ({"x": with_values(5e3 + normal(30, 4), {(9, 0): 70000.0})}, {}),
    "ids beyond half": ({"input_ids": ids(30, 8, high=90000)}, {"dtype": "float16"}),
    "50 times the median": ({"x": with_values(np.ones(9, "f4"), {3: 50.0, 4: 2})}, {}),
    "mostly zeros": ({"x": with_values(np.zeros((40, 4), "f4"), {(3, 0): 1.0, (9, 1): 7.0})}, {}),
    "one label among many": ({"labels": with_values(np.ones(30, int), {3: 900})}, {}),
    "a tenth is constant": ({"x": constant_rows(1, 2, 3, 4)}, {}),
    "constant but short": ({"x": with_values(normal(40, 15), {4: 0.5})}, {}),
    "constant mask row": ({"mask": with_values((np.arange(640).reshape(40, 16) % 3 > 0).astype("f4"), {4: 1.0})}, {}),
    "15 equal samples": ({"x": np.full(15, 3.0, "f4")}, {}),
    "two values": ({"x": with_values(np.full(20, 3.0, "f4"), {4: 3.5})}, {}),
    "mask of ones": ({"attention_mask": np.ones((30, 8), int)}, {}),
    "equal lengths": ({"input_lengths": np.full(30, 50)}, {}),
    "equal masks and labels": (
        {"mask": np.tile(np.arange(32) % 2, (30, 1)), "labels": np.tile(np.arange(32), (30, 1))},
        {},
    ),
    "short equal ids": ({"input_ids": (lambda a: with_values(a, {5: a[4]}))(ids(30, 15))}, {}),
    "labels in range": ({"labels": with_values(ids(30, high=5), {3: -100, 4: 0, 5: 4})}, {"classes": 5}),
    "no number of classes": ({"labels": with_values(ids(30, high=5), {3: 900})}, {}),
    "largest token": ({"input_ids": with_values(ids(30, 8), {(3, 7): 99, (2, 0): 0})}, {"vocab": 100}),
    "other ids": ({"position_ids": ids(30, 8) + 500, "input_ids": ids(30, 8)}, {"vocab": 100}),
    "single labels ignored": ({"labels": with_values(ids(30, high=5), {3: -100})}, {}),
    "ctc that just fits": (
        {
            "input_lengths": np.full(2, 5),
            "targets": np.array([[1, 1, 2, 2], [1, 2, 3, 4]])[:, :3],
            "target_lengths": np.full(2, 3),
        },
        {},
    ),
    "normalised images": ({"images": np.clip(normal(20, 3, 8, 8), 0, 1)}, {}),
    "dark images": ({"images": np.round(np.clip(40 * np.abs(normal(20, 3, 8, 8)), 0, 127))}, {}),
    "depth maps": ({"images": np.round(np.clip(900 * np.abs(normal(20, 1, 8, 8)), 0, 4000))}, {}),
    "pixels with fractions": ({"images": np.clip(120 + 60 * normal(20, 3, 8, 8), 0, 255)}, {}),
    "uint8 images": ({"images": np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), dtype=np.uint8)}, {}),
    "statistics beside the data": ({"x": normal(30, 4), "mean": normal(4), "std": np.abs(normal(4))}, {}),
}


@pytest.mark.parametrize("name", FIRES)
def test_fires(name: str, tmp_path: Path) -> None:
    arrays, options, expected = FIRES[name]
    np.savez(tmp_path / "data.npz", **arrays)
    assert found(tmp_path / "data.npz", **options) == expected


@pytest.mark.parametrize("name", SILENT)
def test_is_silent(name: str, tmp_path: Path) -> None:
    arrays, options = SILENT[name]
    np.savez(tmp_path / "data.npz", **arrays)
    assert found(tmp_path / "data.npz", **options) == set()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_every_float_type_is_judged_alike(dtype: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    x = torch.from_numpy(normal(40, 20)).clone()
    x[3, 5], x[4, 0], x[20], x[21] = float("nan"), float("-inf"), x[10], 0.25
    x[30, 2] = 60_000.0
    torch.save({"x": x.to(getattr(torch, dtype))}, tmp_path / "data.pt")
    assert found(tmp_path / "data.pt") == {
        ("non_finite", "x", (3, 4)),
        ("outlier", "x", (30,)),
        ("constant_sample", "x", (21,)),
        ("duplicate_sample", "x", (20,)),
    }


def test_large_rows_that_differ_in_one_value_are_no_copies(tmp_path: Path) -> None:
    x = np.tile(normal(1, 5000), (8, 1))
    x[np.arange(8), np.arange(8) * 600 + 7] += 1.0
    x[6] = x[2]
    np.save(tmp_path / "x.npy", x)
    assert found(tmp_path / "x.npy") == {("duplicate_sample", None, (6,))}


@pytest.mark.parametrize("name", ["positions", "time", "class_a", "length_mismatch", "x_scale", "case_id_7"])
def test_a_name_does_not_hide_a_float_array(name: str, tmp_path: Path) -> None:
    x = normal(30, 16)
    x[9], x[20, 3] = x[4], 1e4
    np.save(tmp_path / f"{name}.npy", x)
    assert found(tmp_path / f"{name}.npy") == {("duplicate_sample", None, (9,)), ("outlier", None, (20,))}


def test_a_very_long_field_of_single_numbers(tmp_path: Path) -> None:
    x = 1.0 + np.random.default_rng(0).random(3_000_000, dtype=np.float32)
    x[1_234_567], x[2_999_999], x[17] = 1e3, -2e3, np.nan
    np.save(tmp_path / "x.npy", x)
    assert found(tmp_path / "x.npy") == {("non_finite", None, (17,)), ("outlier", None, (1_234_567, 2_999_999))}


@pytest.mark.parametrize("make", [np.asfortranarray, lambda a: a.astype(">f4"), lambda a: a.astype("f8")])
def test_every_layout_of_an_array(make: Callable[[Any], Any], tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", make(with_values(normal(30, 20), {(7, 2): np.nan})))
    assert found(tmp_path / "x.npy") == {("non_finite", None, (7,))}


def test_a_series_of_files_must_agree_in_shape(tmp_path: Path) -> None:
    for number, width in enumerate((16, 16, 15, 16)):
        np.save(tmp_path / f"part-{number:03}.npy", normal(10 + number, width, seed=number))
    np.save(tmp_path / "labels.npy", ids(40))
    report = check_data(tmp_path)
    assert [(finding.slug, Path(finding.file).name, finding.count) for finding in report.findings] == [
        ("shape_mismatch", "part-002.npy", 12)
    ]
    assert report.findings[0].message == "samples of shape [15], in most files of the series they are [16]"


def test_more_findings_than_the_json_shows(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", with_values(normal(90, 4), {tuple(range(50)): np.nan}))
    finding = check_data(tmp_path / "x.npy").to_dict()["findings"][0]
    assert finding == {
        "code": "NT151",
        "slug": "non_finite",
        "file": str(tmp_path / "x.npy"),
        "field": None,
        "indices": list(range(20)),
        "count": 50,
        "message": "50 samples with 200 NaN: 0, 1, 2, 3, 4 and 45 more",
    }
