"""Every format: faults are found with the index users know, and damage leaves the rest readable."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from nantrap.doctor.data import DataOptions, check_data
from nantrap.errors import UsageError

Found = list[tuple[str, str, str | None, tuple[int, ...]]]


def found(path: Path, **options: Any) -> Found:
    report = check_data(path, options=DataOptions(**options))
    return [(each.slug, Path(each.file).name, each.field, each.indices[:20]) for each in report.findings]


def values(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


BAD = values(30, 20)
BAD[7, 2] = np.nan
LABELS = np.arange(30) % 5


def write_parquet(path: Path) -> None:
    table = pa.table({"x": list(BAD), "labels": LABELS})
    pyarrow.parquet.write_table(table, path, row_group_size=8)


def write_arrow(path: Path) -> None:
    pyarrow.feather.write_feather(pa.table({"x": list(BAD), "labels": LABELS}), str(path), compression="uncompressed")


def write_arrow_stream(path: Path) -> None:
    table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(BAD.reshape(-1)), 20), "labels": LABELS})
    with pa.ipc.new_stream(path, table.schema) as stream:
        stream.write_table(table, max_chunksize=7)


def write_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=BAD, chunks=(4, 20), compression="gzip")
        file.create_dataset("labels", data=LABELS)


def write_jsonl(path: Path) -> None:
    lines = (json.dumps({"x": x.tolist(), "labels": int(y)}) for x, y in zip(BAD, LABELS, strict=True))
    path.write_text("\n".join(lines) + "\n")


def write_tar(path: Path) -> None:
    with tarfile.open(path, "w") as archive:
        for index, (x, y) in enumerate(zip(BAD, LABELS, strict=True)):
            data = io.BytesIO()
            np.save(data, x)
            add(archive, f"{index:06}.x.npy", data.getvalue())
            add(archive, f"{index:06}.labels.cls", str(y).encode())


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


WRITERS: dict[str, Callable[[Path], None]] = {
    "data.npz": lambda path: np.savez(path, x=BAD, labels=LABELS),
    "small.npz": lambda path: np.savez_compressed(path, x=BAD, labels=LABELS),
    "data.pt": lambda path: torch.save({"x": torch.from_numpy(BAD), "labels": torch.from_numpy(LABELS)}, path),
    "old.pt": lambda path: torch.save(
        {"x": torch.from_numpy(BAD), "labels": torch.from_numpy(LABELS)}, path, _use_new_zipfile_serialization=False
    ),
    "list.pt": lambda path: torch.save(
        [{"x": torch.from_numpy(x), "labels": int(y)} for x, y in zip(BAD, LABELS, strict=True)], path
    ),
    "data.safetensors": lambda path: save_file({"x": torch.from_numpy(BAD), "labels": torch.from_numpy(LABELS)}, path),
    "data.parquet": write_parquet,
    "data.feather": write_arrow,
    "stream.arrow": write_arrow_stream,
    "data.h5": write_hdf5,
    "data.jsonl": write_jsonl,
    "data.tar": write_tar,
}


@pytest.mark.parametrize("name", WRITERS)
def test_same_findings_in_every_format(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    WRITERS[name](path)
    report = check_data(path, options=DataOptions(classes=4))
    fields = {"data.tar": ("x.npy", "labels.cls")}.get(name, ("x", "labels"))
    assert [(each.slug, each.field, each.indices) for each in report.findings] == [
        ("non_finite", fields[0], (7,)),
        ("label_out_of_range", fields[1], (4, 9, 14, 19, 24, 29)),
    ]
    assert report.samples == 30
    assert report.bytes == path.stat().st_size


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("keep", [0, 0.4, 0.8])
def test_a_cut_file_is_reported(name: str, keep: float, tmp_path: Path) -> None:
    path = tmp_path / name
    WRITERS[name](path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    np.save(tmp_path / "other.npy", values(4))
    reported = {each.file for each in check_data(tmp_path).findings if each.slug == "unreadable_file"}
    assert reported == {str(path)}


@pytest.mark.parametrize("name", [*WRITERS, "image.png", "data.npy"])
def test_a_foreign_file_is_reported(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("<html><body>404 Not Found</body></html>\n")
    assert [each[0] for each in found(tmp_path)] == ["unreadable_file"]


def test_tuples_and_lists_of_tensors(tmp_path: Path) -> None:
    x, y = torch.from_numpy(BAD), torch.from_numpy(LABELS)
    torch.save((x, y), tmp_path / "pair.pt")
    torch.save([x, y], tmp_path / "list_pair.pt")
    torch.save(list(x), tmp_path / "samples.pt")
    torch.save({"train": {"x": x, "y": y}, "test": {"x": x[:9].nan_to_num(), "y": y[:9]}}, tmp_path / "splits.pt")
    torch.save(x, tmp_path / "bare.pt")
    torch.save(x.t().contiguous().t(), tmp_path / "transposed.pt")
    assert found(tmp_path) == [
        ("non_finite", "bare.pt", None, (7,)),
        ("non_finite", "list_pair.pt", "0", (7,)),
        ("non_finite", "pair.pt", "0", (7,)),
        ("non_finite", "samples.pt", None, (7,)),
        ("non_finite", "splits.pt", "train.x", (7,)),
        ("non_finite", "transposed.pt", None, (7,)),
    ]


def test_pickles_are_not_run(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "exploded",))

    torch.save({"x": torch.from_numpy(BAD), "bomb": Bomb()}, tmp_path / "data.pt")
    np.save(tmp_path / "objects.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
    assert found(tmp_path) == [
        ("non_finite", "data.pt", "x", (7,)),
        ("unreadable_file", "objects.npy", None, ()),
    ]
    assert not (tmp_path / "exploded").exists()


def test_csv_cells_rows_and_headers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        'name,x,y,when\n"a, b",1.5,3,2020-01-01\nb,,4,2020-01-02\nc,nan,5,2020-01-03\nd,inf,6,2020-01-04\n'
        '"a, b",1.5,3,2020-01-01\ne,2.5,7\n'
    )
    (tmp_path / "b.csv").write_text("1.5;2\n;3\n2.5;4\n")
    (tmp_path / "c.tsv").write_text("x\tnotes\n1\t\n2\tfine\n3\t\n")
    assert found(tmp_path) == [
        ("non_finite", "a.csv", "x", (1, 2, 3)),
        ("duplicate_sample", "a.csv", None, (4,)),
        ("shape_mismatch", "a.csv", None, (5,)),
        ("non_finite", "b.csv", "0", (1,)),
    ]


def test_csv_outliers_are_judged_in_features_only(tmp_path: Path) -> None:
    rows = [f"{index + 7},{50 + index % 9},{index % 3}" for index in range(40)]
    rows[5] = "900000,800000,1"
    (tmp_path / "a.csv").write_text("id,height,label\n" + "\n".join(rows))
    assert found(tmp_path, dtype="float16") == [
        ("overflows_half", "a.csv", "height", (5,)),
        ("outlier", "a.csv", "height", (5,)),
    ]


def test_a_text_in_a_column_of_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n" + "\n".join(map(str, range(30))) + "\nbroken\n")
    report = check_data(tmp_path)
    assert [each.message for each in report.findings] == ["1 sample with 1 not a number: 30"]


def test_jsonl_nulls_ranks_and_broken_lines(tmp_path: Path) -> None:
    lines = [json.dumps({"ids": list(range(n)), "score": 0.5 + n, "text": "a"}) for n in range(1, 9)]
    lines[2] = '{"ids": [1, 2], "score": null, "text": "a"}'
    lines[4] = '{"ids": 3, "score": 2.5, "text": "a"}'
    lines[6] = '{"ids": [1, 2, "sc'
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    assert found(tmp_path) == [
        ("non_finite", "a.jsonl", "score", (2,)),
        ("shape_mismatch", "a.jsonl", "ids", (4,)),
        ("unreadable_file", "a.jsonl", None, (6,)),
    ]


def test_jsonl_ctc_and_token_rows(tmp_path: Path) -> None:
    rows = [
        {"input_length": 4, "labels": [1, 2, 3]},
        {"input_length": 4, "labels": [1, 1, 1]},
        {"input_length": 9, "labels": [-100, -100]},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert found(tmp_path) == [
        ("all_labels_ignored", "a.jsonl", "labels", (2,)),
        ("ctc_infeasible", "a.jsonl", "labels", (1,)),
    ]


def test_parquet_nulls_and_ragged_lists(tmp_path: Path) -> None:
    table = pa.table(
        {
            "score": pa.array([1.5, None, 2.5, 3.5]),
            "ids": [[1, 2], [3], [4, 5, 6], [7]],
            "grid": [[[1.0, 2.0]], [[1.0, 3.0], [3.0, 4.0]], [[1.0, 2.0, 3.0]], [[5.0, 6.0]]],
            "text": ["a", "b", "c", "d"],
        }
    )
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert found(tmp_path) == [
        ("non_finite", "a.parquet", "score", (1,)),
        ("shape_mismatch", "a.parquet", "grid", (2,)),
    ]


def test_tar_samples_with_a_missing_member_and_a_bad_image(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for index in range(6):
            data = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(data, "png")
            encoded = data.getvalue()[: 60 if index == 3 else None]
            add(archive, f"s{index}.png", encoded)
            if index != 2:
                add(archive, f"s{index}.cls", b"1")
    assert found(tmp_path) == [
        ("shape_mismatch", "a.tar", "cls", (2,)),
        ("unreadable_file", "a.tar", "png", (3,)),
    ]


def test_an_image_folder(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for index in range(24):
        size = (8 + index % 3, 9)
        folder = tmp_path / f"class_{index % 2}"
        folder.mkdir(exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(folder / f"{index:02}.png")
    (tmp_path / "class_1" / "30.png").write_bytes((tmp_path / "class_0" / "04.png").read_bytes())
    Image.new("RGB", (8, 8), (0, 0, 0)).save(tmp_path / "class_0" / "31.png")
    Image.new("L", (8, 8)).save(tmp_path / "class_0" / "32.png")
    Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(tmp_path / "class_0" / "33.jpg")
    data = (tmp_path / "class_0" / "33.jpg").read_bytes()
    (tmp_path / "class_0" / "33.jpg").write_bytes(data[: len(data) // 2])
    (tmp_path / "class_0" / "34.png").write_bytes(b"")
    (tmp_path / "README.md").write_text("not data")
    assert found(tmp_path) == [
        ("constant_sample", "31.png", None, (0,)),
        ("constant_sample", "32.png", None, (0,)),
        ("shape_mismatch", "32.png", None, (0,)),
        ("unreadable_file", "33.jpg", None, ()),
        ("unreadable_file", "34.png", None, ()),
        ("duplicate_sample", "30.png", None, (0,)),
    ]
    assert check_data(tmp_path).samples == 27


def test_masks_next_to_images_look_alike(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for folder in ("images", "masks"):
        (tmp_path / folder).mkdir()
    for index in range(12):
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(tmp_path / "images" / f"{index}.png")
        Image.new("L", (8, 8)).save(tmp_path / "masks" / f"{index}.png")
    assert found(tmp_path) == []


def test_a_forged_arrow_file_does_not_end_the_process(tmp_path: Path) -> None:
    write_arrow(tmp_path / "a.feather")
    data = bytearray((tmp_path / "a.feather").read_bytes())
    for position in range(64, len(data) - 64, 97):
        data[position] ^= 0x7F
    (tmp_path / "a.feather").write_bytes(bytes(data))
    assert "unreadable_file" in [each[0] for each in found(tmp_path)]


def test_a_column_of_counts_is_no_label(tmp_path: Path) -> None:
    rows = "\n".join(f"{20 + index},{index * 0.5},{index % 7}" for index in range(20))
    (tmp_path / "a.csv").write_text("age,score,num_tokens\n" + rows)
    assert found(tmp_path, classes=3, vocab=2) == []


def test_a_column_called_weight_is_a_feature(tmp_path: Path) -> None:
    rows = [f"{index},{60 + index % 30},{1.5 + index % 7}" for index in range(40)]
    rows[5] = "5,71000,9000.5"
    (tmp_path / "a.csv").write_text("id,weight,scale\n" + "\n".join(rows))
    assert found(tmp_path) == [("outlier", "a.csv", "scale", (5,)), ("outlier", "a.csv", "weight", (5,))]


def test_a_field_that_does_not_exist(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=values(30, 4), genre=LABELS)
    assert [each[0] for each in found(tmp_path, classes=3, labels="genre")] == ["label_out_of_range"]
    with pytest.raises(UsageError, match="--labels kind: no file has such a field; there are genre, x"):
        check_data(tmp_path, options=DataOptions(classes=3, labels="kind"))


def test_a_folder_without_data(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("nothing here")
    with pytest.raises(UsageError, match="no data file of a known kind was found"):
        check_data(tmp_path)


def test_a_path_that_does_not_exist() -> None:
    with pytest.raises(UsageError, match=r"no/such.npy does not exist; give files, folders"):
        check_data("no/such.npy")


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", values(30, 4))

    class Writer:
        def run(self, function: Any, items: Any) -> Any:
            def changed_in_between(item: Any) -> Any:
                with open(tmp_path / "x.npy", "r+b") as file:
                    file.truncate(200)
                return function(item)

            return enumerate(map(changed_in_between, items))

    report = check_data(tmp_path, engine=Writer())
    assert [each.slug for each in report.findings] == ["unreadable_file"]
    assert report.findings[0].message == "changed while it was read; check it again when nothing writes to it"


def test_a_dataset_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_data.py").write_text(
        "import torch\n"
        "class Points:\n"
        "    def __len__(self): return 20\n"
        "    def __getitem__(self, i):\n"
        "        if i == 11: raise OSError('disk')\n"
        "        x = torch.full((3,), float(i + 1)).bfloat16()\n"
        "        return {'x': x / (i != 4), 'label': i % 3}\n"
        "def broken(): raise RuntimeError('no data here')\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert found("own_data:Points", classes=2) == [  # type: ignore[arg-type]
        ("non_finite", "own_data:Points", "x", (4,)),
        ("label_out_of_range", "own_data:Points", "label", (2, 5, 8, 14, 17)),
        ("unreadable_file", "own_data:Points", None, (11,)),
    ]
    for name, words in (
        ("broken", "RuntimeError: no data here"),
        ("number", "gave an object of type int"),
        ("nothing", "has no"),
    ):
        with pytest.raises(UsageError, match=words):
            check_data(f"own_data:{name}")


def test_what_is_elsewhere_is_not_said_to_be_damaged(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(40.0)
        file["link"] = h5py.ExternalLink("b.h5", "/x")
        file["lost"] = h5py.SoftLink("/nowhere")
    found = {finding.field: finding for finding in check_data(tmp_path / "a.h5").findings}
    assert found["link"].message == "not read: a link to another file, b.h5:/x; check that file"
    assert found["link"].help == (
        "nothing is wrong with this file: give the files that hold the values to nantrap data as well"
    )
    assert found["lost"].help == "remove the link, or write what it names"
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY")
    (cut,) = check_data(tmp_path / "cut.npy").findings
    assert cut.help.startswith("download or write the file again")
