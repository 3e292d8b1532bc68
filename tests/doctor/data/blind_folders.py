"""More folders for `folders.py`, written from the rules alone, before anything was run on them."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np

from doctor.data.folders import faulty, healthy, normal, pixels, png, rng, save_torch, tensor


@faulty(("non_finite", "train.pt", "images", (7, 20)), classes=10)
def tensors_under_keys(folder: Path) -> None:
    images = normal(64, 3, 8, 8)
    images[7, 1, 2, 3], images[20, 0] = np.nan, np.inf
    save_torch(folder / "train.pt", {"images": tensor(images), "labels": tensor(rng().integers(0, 10, 64))})


@faulty(("non_finite", "a.pt", "x", (3,)))
def samples_in_a_list(folder: Path) -> None:
    x = normal(40, 16)
    x[3, 0] = np.inf
    save_torch(folder / "a.pt", [{"x": tensor(row), "y": number % 3} for number, row in enumerate(x)])


@faulty(("label_out_of_range", "a.pt", "gt", (5,)), classes=10, labels="gt")
def labels_by_option(folder: Path) -> None:
    labels = np.arange(64) % 10
    labels[5], labels[11] = 12, -100
    save_torch(folder / "a.pt", {"x": tensor(normal(64, 16)), "gt": tensor(labels)})


@faulty(("non_finite", "a.npy", None, (17,)))
def other_byte_order_and_column_order(folder: Path) -> None:
    x = np.asfortranarray(normal(64, 32).astype(">f8"))
    x[17, 3] = np.nan
    np.save(folder / "a.npy", x)


@faulty(("overflows_half", "a.npy", None, (4,)), dtype="float16")
def one_value_beyond_half(folder: Path) -> None:
    x = 2e3 * normal(50, 20)
    x[4, 4], x[5, 5] = 70_000, 65_504
    np.save(folder / "a.npy", x)


@faulty(
    ("token_out_of_range", "a.safetensors", "input_ids", (9, 10)),
    ("all_labels_ignored", "a.safetensors", "labels", (20,)),
    vocab=1000,
)
def token_ids_and_ignored_labels(folder: Path) -> None:
    from safetensors.numpy import save_file

    ids = rng().integers(0, 1000, (64, 32))
    labels = ids.copy()
    ids[9, 0], ids[10, 5] = 1000, -1
    labels[20], labels[21, :31] = -100, -100
    save_file({"input_ids": ids, "labels": labels}, folder / "a.safetensors")


@faulty(("non_finite", "a.arrow", "emb", (55,)), ("non_finite", "b.arrow", "emb", (55,)))
def arrow_stream_and_file(folder: Path) -> None:
    import pyarrow as pa

    x = normal(100, 8)
    x[55, 2] = np.inf
    table = pa.table({"emb": pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), 8)})
    for name, writer in (("a.arrow", pa.ipc.new_stream), ("b.arrow", pa.ipc.new_file)):
        with pa.OSFile(str(folder / name), "wb") as file, writer(file, table.schema) as stream:
            stream.write_table(table, max_chunksize=30)


@faulty(
    ("duplicate_sample", "a.parquet", "input_ids", (150,)),
    ("token_out_of_range", "a.parquet", "input_ids", (77,)),
    vocab=500,
)
def lists_in_parquet(folder: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    ids = rng().integers(0, 500, (200, 32)).tolist()
    ids[77][3], ids[150] = 500, list(ids[2])
    pa.parquet.write_table(pa.table({"input_ids": ids}), folder / "a.parquet")


@faulty(("label_out_of_range", "a.csv", "label", (30,)), classes=3)
def line_ends_in_quotes(folder: Path) -> None:
    rows = [f'"line {number},\nsecond",{number % 3}\n' for number in range(50)]
    rows[30] = '"q\n\n",7\n'
    (folder / "a.csv").write_text("text,label\n" + "".join(rows))


@faulty(("shape_mismatch", "a.csv", None, (8, 9)))
def rows_of_another_width(folder: Path) -> None:
    rows = [f"{number},{number * 2.5}" for number in range(40)]
    rows[8], rows[9] = "8,1,2", "9"
    (folder / "a.csv").write_text("a,b\n" + "\n".join(rows) + "\n")


@faulty(
    ("token_out_of_range", "a.jsonl", "input_ids", (5,)),
    ("empty_mask", "a.jsonl", "attention_mask", (6,)),
    ("non_finite", "a.jsonl", "score", (7,)),
    ("label_out_of_range", "a.jsonl", "label", (8,)),
    vocab=100,
    classes=4,
)
def four_faults_in_lines(folder: Path) -> None:
    ids, scores = rng().integers(0, 100, (60, 20)).tolist(), rng(1).normal(size=60).tolist()
    ids[5][0], scores[7] = 100, float("nan")
    rows = [
        {"input_ids": ids[n], "attention_mask": [int(n != 6)] * 20, "score": scores[n], "label": 4 if n == 8 else n % 4}
        for n in range(60)
    ]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@faulty(("non_finite", "a.h5", "g/x", (3,)), ("label_out_of_range", "a.h5", "g/labels", (4,)), classes=5)
def a_group_in_hdf5(folder: Path) -> None:
    import h5py

    x, labels = normal(80, 4, 4), np.arange(80) % 5
    x[3, 0, 0], labels[4] = np.nan, 5
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("g/x", data=x, chunks=(16, 4, 4), compression="gzip")
        file["g/labels"] = labels


@faulty(
    ("label_out_of_range", "s-000.tar", "cls", (7,)),
    ("non_finite", "s-000.tar", "npy", (9,)),
    ("unreadable_file", "s-000.tar", "png", (5,)),
    classes=10,
)
def members_of_a_tar(folder: Path) -> None:
    with tarfile.open(folder / "s-000.tar", "w") as archive:
        for number in range(30):
            image, x, stream = png(pixels(8, 8, 3, seed=number)), normal(20, seed=number), io.BytesIO()
            x[0] = np.nan if number == 9 else x[0]
            np.save(stream, x)
            members = {
                "png": image[:40] if number == 5 else image,
                "cls": b"12" if number == 7 else str(number % 10).encode(),
                "npy": stream.getvalue(),
                "txt": b"words",
            }
            for extension, data in members.items():
                info = tarfile.TarInfo(f"{number:04}.{extension}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))


@faulty(("ctc_infeasible", "a.npz", "targets", (3, 4)))
def targets_longer_than_their_input(folder: Path) -> None:
    targets, inputs = np.tile(np.arange(1, 11), (40, 1)), np.full(40, 50)
    inputs[3], inputs[4], targets[4] = 9, 15, 1
    features, lengths = normal(40, 50, 4), np.full(40, 10)
    np.savez(folder / "a.npz", features=features, targets=targets, input_lengths=inputs, target_lengths=lengths)


@faulty(("unreadable_file", "a.pt", None, ()))
def an_object_that_would_run_code(folder: Path) -> None:
    class Runs:
        def __reduce__(self) -> tuple[object, ...]:
            return exec, ("raise SystemExit('the pickle was run')",)

    save_torch(folder / "a.pt", {"x": Runs()})
    save_torch(folder / "b.pt", tensor(normal(4, 4)))


@healthy()
def arrays_of_every_kind(folder: Path) -> None:
    arrays = {
        "half": normal(50, 20).astype("f2"),
        "ids": rng(1).integers(0, 50_000, (50, 32)),
        "doubles": rng(2).random((50, 8, 8, 3)),
        "pixels": pixels(50, 8, 8, 3),
        "columns": np.asfortranarray(normal(64, 32)),
        "big": normal(50, 20).astype(">f4"),
        "complex": normal(50, 20) + 1j * normal(50, 20, seed=1),
        "flags": rng(3).random(50) > 0.5,
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)


@healthy(classes=3)
def quotes_and_tabs(folder: Path) -> None:
    (folder / "a.csv").write_text("text,label\n" + "".join(f'"l {n},\n""x"" ",{n % 3}\n' for n in range(50)))
    (folder / "b.tsv").write_text("a\tb\n" + "".join(f"{n}\t{n * 1.5}\n" for n in range(50)))


@healthy(vocab=99)
def texts_of_every_length(folder: Path) -> None:
    save_torch(folder / "a.pt", [{"ids": tensor(rng(n).integers(0, 99, 5 + n))} for n in range(40)])
