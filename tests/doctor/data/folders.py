"""Whole data folders, as projects have them: thirty with a known fault each, ten that look dangerous and are healthy.

Each entry of `FAULTY` and `HEALTHY` writes a folder and names the options; `FAULTY` also says what must be found, as
(slug, file, field, first indices). Everything else that is reported is a false finding.
"""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Expected = tuple[str, str, str | None, tuple[int, ...]]


@dataclass(frozen=True)
class Folder:
    """A folder: who writes it, what the user says about it, what must be found."""

    write: Callable[[Path], None]
    found: frozenset[Expected] = frozenset()
    options: dict[str, Any] = field(default_factory=dict)


FAULTY: dict[str, Folder] = {}
HEALTHY: dict[str, Folder] = {}
Writer = Callable[[Path], None]


def faulty(*found: Expected, **options: Any) -> Callable[[Writer], Writer]:
    def add(write: Writer) -> Writer:
        FAULTY[write.__name__] = Folder(write, frozenset(found), options)
        return write

    return add


def healthy(**options: Any) -> Callable[[Writer], Writer]:
    def add(write: Writer) -> Writer:
        HEALTHY[write.__name__] = Folder(write, frozenset(), options)
        return write

    return add


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(*shape: int, seed: int = 0) -> Array:
    return rng(seed).normal(size=shape).astype(np.float32)


def pixels(*shape: int, seed: int = 0) -> Array:
    return rng(seed).integers(0, 256, size=shape, dtype=np.uint8)


def save_torch(path: Path, value: Any) -> None:
    import torch

    torch.save(value, path)


def tensor(array: Array) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(array))


def png(array: Array) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "PNG")
    return stream.getvalue()


def write_table(path: Path, names: list[str], rows: Iterator[list[Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(rows)


def write_lines(path: Path, records: Iterator[Any]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def write_tar(path: Path, members: Iterator[tuple[str, bytes]]) -> None:
    with tarfile.open(path, "w") as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def npy(array: Array) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


# ---- not finite


@faulty(("non_finite", "train_images.npy", None, (7,)))
def nan_pixel_in_channels_first_images(folder: Path) -> None:
    images = rng().random((60, 3, 16, 16), dtype=np.float32)
    images[7, 1, 4, 4] = np.nan
    np.save(folder / "train_images.npy", images)
    np.save(folder / "train_labels.npy", rng().integers(0, 10, 60))


@faulty(("non_finite", "fold0.npz", "x", (3, 150)))
def infinite_values_in_doubles(folder: Path) -> None:
    x = normal(200, 32).astype(np.float64)
    x[3, 0], x[150, 31] = np.inf, -np.inf
    np.savez(folder / "fold0.npz", x=x, y=rng().integers(0, 2, 200))


@faulty(("non_finite", "cache.pt", "latents", (11,)))
def nan_in_bfloat16_latents(folder: Path) -> None:
    import torch

    latents = tensor(normal(50, 4, 8, 8)).to(torch.bfloat16)
    latents[11, 0, 0, 0] = float("nan")
    save_torch(folder / "cache.pt", {"latents": latents, "labels": torch.arange(50) % 7})


@faulty(("non_finite", "emb.safetensors", "embeddings", (5,)))
def overflowed_half_precision_embeddings(folder: Path) -> None:
    from safetensors.numpy import save_file

    embeddings = normal(80, 24).astype(np.float16)
    embeddings[5, 3] = -np.inf
    save_file({"embeddings": embeddings, "ids": np.arange(80)}, folder / "emb.safetensors")


@faulty(("non_finite", "part-0.parquet", "features", (9,)), ("non_finite", "part-0.parquet", "price", (4,)))
def nulls_in_parquet(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    features = normal(40, 6).tolist()
    features[9][2] = None
    price: list[float | None] = (10 + normal(40)).tolist()
    price[4] = None
    names = [f"item {number}" for number in range(40)]
    table = pyarrow.table({"features": features, "price": price, "name": names})
    pyarrow.parquet.write_table(table, folder / "part-0.parquet")


@faulty(("non_finite", "housing.csv", "area", (12,)))
def an_empty_cell(folder: Path) -> None:
    def rows() -> Iterator[list[Any]]:
        for number in range(50):
            area = "" if number == 12 else round(80 + 10 * rng(number).random(), 2)
            yield [number, area, rng(number).integers(1, 6), "old" if number % 3 else ""]

    write_table(folder / "housing.csv", ["id", "area", "rooms", "remark"], rows())


@faulty(("non_finite", "scores.jsonl", "score", (3,)))
def a_nan_in_json_lines(folder: Path) -> None:
    lines = ({"text": f"t{n}", "score": float("nan") if n == 3 else 0.1 + (n % 7)} for n in range(30))
    write_lines(folder / "scores.jsonl", lines)


@faulty(("non_finite", "weather.h5", "train/t2m", (21,)))
def nan_in_a_group_of_hdf5(folder: Path) -> None:
    import h5py

    values = 280 + normal(64, 12)
    values[21, 5] = np.nan
    with h5py.File(folder / "weather.h5", "w") as file:
        file["train/t2m"] = values
        file["train/time"] = np.arange(64)


@faulty(("non_finite", "sensor.feather", "pressure", (2, 31)))
def infinite_values_in_feather(folder: Path) -> None:
    import pyarrow.feather

    pressure = 1000 + normal(48).astype(np.float64)
    pressure[2], pressure[31] = np.inf, np.inf
    pyarrow.feather.write_feather(
        pyarrow.table({"pressure": pressure, "station": ["a", "b"] * 24}), folder / "sensor.feather"
    )


# ---- range


@faulty(("overflows_half", "counts.csv", "reads", (6,)), dtype="float16")
def counts_beyond_half_precision(folder: Path) -> None:
    rows = ([n, 100_000 if n == 6 else 20_000 + 31 * n] for n in range(40))
    write_table(folder / "counts.csv", ["sample_id", "reads"], rows)


@faulty(("outlier", "waves.npy", None, (40,)))
def a_recording_in_another_unit(folder: Path) -> None:
    waves = 0.1 * normal(100, 800)
    waves[40] *= 32768
    np.save(folder / "waves.npy", waves)


@faulty(("outlier", "trips.csv", "distance_km", (17,)))
def a_distance_in_metres(folder: Path) -> None:
    rows = ([n, 4800.0 if n == 17 else round(2 + 6 * rng(n).random(), 3), n % 4] for n in range(60))
    write_table(folder / "trips.csv", ["trip_id", "distance_km", "day"], rows)


@faulty(("scale_suspect", "digits.npz", "images", tuple(range(20))))
def images_that_were_not_divided(folder: Path) -> None:
    images = pixels(50, 28, 28).astype(np.float32)
    np.savez(folder / "digits.npz", images=images, labels=rng().integers(0, 10, 50))


# ---- constant, copies


@faulty(("constant_sample", "scans/017.png", None, (0,)))
def a_black_scan(folder: Path) -> None:
    (folder / "scans").mkdir()
    for number in range(40):
        image = np.zeros((12, 12, 3), np.uint8) if number == 17 else pixels(12, 12, 3, seed=number)
        (folder / f"scans/{number:03}.png").write_bytes(png(image))


@faulty(("constant_sample", "ecg.pt", None, (8,)))
def a_flat_recording(folder: Path) -> None:
    signals = normal(50, 250)
    signals[8] = 0.0
    save_torch(folder / "ecg.pt", tensor(signals))


@faulty(("constant_field", "sim.npz", "viscosity", ()))
def a_parameter_that_never_varies(folder: Path) -> None:
    np.savez(folder / "sim.npz", state=normal(64, 10), viscosity=np.full((64, 1), 0.01, np.float32))


@faulty(("duplicate_sample", "faces.npy", None, (30, 44)))
def repeated_images(folder: Path) -> None:
    faces = pixels(50, 8, 8, 3)
    faces[30], faces[44] = faces[2], faces[2]
    np.save(folder / "faces.npy", faces)


@faulty(("duplicate_sample", "corpus.jsonl", "input_ids", (17,)))
def a_repeated_text(folder: Path) -> None:
    texts = [rng(n).integers(3, 900, 18 + n % 5).tolist() for n in range(40)]
    texts[17] = texts[4]
    write_lines(folder / "corpus.jsonl", ({"input_ids": text, "source": f"s{n % 3}"} for n, text in enumerate(texts)))


@faulty(("duplicate_sample", "patients.csv", None, (9,)))
def a_repeated_row(folder: Path) -> None:
    rows = [[round(30 + 40 * rng(n).random(), 1), round(rng(n + 99).random(), 4), "mf"[n % 2]] for n in range(30)]
    rows[9] = rows[1]
    write_table(folder / "patients.csv", ["age", "marker", "sex"], iter(rows))


# ---- shapes


@faulty(("shape_mismatch", "vectors.jsonl", "embedding", (5,)))
def an_embedding_of_another_size(folder: Path) -> None:
    lines = ({"embedding": normal(63 if n == 5 else 64, seed=n).tolist()} for n in range(30))
    write_lines(folder / "vectors.jsonl", lines)


@faulty(("shape_mismatch", "pairs.npz", "target", (99,)))
def one_target_is_missing(folder: Path) -> None:
    np.savez(folder / "pairs.npz", x=normal(100, 5), target=normal(99))


@faulty(("shape_mismatch", "clips.pt", None, (13,)))
def a_clip_without_channels(folder: Path) -> None:
    clips = [tensor(normal(6, 4, 5, seed=n)) for n in range(30)]
    clips[13] = tensor(normal(6, 4))
    save_torch(folder / "clips.pt", clips)


@faulty(("shape_mismatch", "photos/09.png", None, (0,)))
def a_grey_photo_among_coloured_ones(folder: Path) -> None:
    (folder / "photos").mkdir()
    for number in range(20):
        shape = (9 + number % 4, 11) if number == 9 else (9 + number % 4, 11, 3)
        (folder / f"photos/{number:02}.png").write_bytes(png(pixels(*shape, seed=number)))


# ---- labels, tokens, masks


@faulty(("label_out_of_range", "y_train.npy", None, (5, 6)), classes=10)
def labels_that_begin_at_one(folder: Path) -> None:
    labels = rng().integers(0, 10, 80)
    labels[[5, 6, 7]] = 10, -1, -100
    np.save(folder / "y_train.npy", labels)
    np.save(folder / "x_train.npy", normal(80, 6))


@faulty(("token_out_of_range", "tokens.safetensors", "input_ids", (33,)), vocab=50257)
def a_token_that_was_added_to_the_tokenizer(folder: Path) -> None:
    from safetensors.numpy import save_file

    ids = rng().integers(0, 50257, (60, 32))
    ids[33, -1] = 50257
    save_file({"input_ids": ids, "attention_mask": np.ones((60, 32), np.int64)}, folder / "tokens.safetensors")


@faulty(("empty_mask", "text.parquet", "attention_mask", (14,)))
def an_empty_text(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    mask = np.ones((40, 12), np.int64)
    mask[:, 9:] = 0
    mask[14] = 0
    ids = rng().integers(5, 800, (40, 12))
    table = pyarrow.table({"input_ids": ids.tolist(), "attention_mask": mask.tolist()})
    pyarrow.parquet.write_table(table, folder / "text.parquet")


@faulty(("all_labels_ignored", "sft.jsonl", "labels", (21,)))
def a_prompt_that_fills_the_window(folder: Path) -> None:
    def records() -> Iterator[Any]:
        for number in range(30):
            ids = rng(number).integers(5, 500, 20).tolist()
            kept = 20 if number == 21 else 8
            yield {"input_ids": ids, "labels": [-100] * kept + ids[kept:]}

    write_lines(folder / "sft.jsonl", records())


@faulty(("ctc_infeasible", "speech.npz", "targets", (2, 6)))
def transcripts_longer_than_their_audio(folder: Path) -> None:
    lengths = np.array([9, 9, 9, 9, 9, 9, 9, 9])
    counts = np.array([4, 5, 8, 3, 6, 7, 10, 9])
    targets = np.zeros((8, 10), np.int64)
    for row, count in enumerate(counts):
        targets[row, :count] = 1 + np.arange(count)
    targets[2, :8] = [1, 1, 2, 2, 3, 4, 5, 6]  # eight labels and two repeats need ten frames
    np.savez(folder / "speech.npz", input_lengths=lengths, targets=targets, target_lengths=counts)


# ---- damage


@faulty(("unreadable_file", "shots/04.jpg", None, ()))
def a_half_downloaded_photo(folder: Path) -> None:
    from PIL import Image

    (folder / "shots").mkdir()
    for number in range(12):
        stream = io.BytesIO()
        Image.fromarray(pixels(40, 40, 3, seed=number)).save(stream, "JPEG")
        data = stream.getvalue()
        (folder / f"shots/{number:02}.jpg").write_bytes(data[: len(data) // 2] if number == 4 else data)


@faulty(("unreadable_file", "train-0001.tar", None, ()))
def a_cut_shard(folder: Path) -> None:
    for shard in range(2):
        path = folder / f"train-{shard:04}.tar"
        members = [
            (f"{shard}{n:03}.{kind}", data)
            for n in range(12)
            for kind, data in (("png", png(pixels(8, 8, 3, seed=100 * shard + n))), ("cls", str(n % 3).encode()))
        ]
        write_tar(path, iter(members))
    path.write_bytes(path.read_bytes()[:9000])


@faulty(
    ("unreadable_file", "a.npy", None, ()),
    ("unreadable_file", "b.parquet", None, ()),
    ("unreadable_file", "c.npz", None, ()),
)
def empty_foreign_and_cut_files(folder: Path) -> None:
    (folder / "a.npy").write_bytes(b"")
    (folder / "b.parquet").write_text("<html><body>404 Not Found</body></html>")
    np.savez(folder / "c.npz", x=normal(100, 100))
    (folder / "c.npz").write_bytes((folder / "c.npz").read_bytes()[:20_000])
    np.save(folder / "d.npy", normal(20, 4))


@faulty(("shape_mismatch", "wds.tar", "cls", (7,)), ("non_finite", "wds.tar", "emb.npy", (3,)))
def a_shard_with_a_missing_label(folder: Path) -> None:
    def members() -> Iterator[tuple[str, bytes]]:
        for number in range(20):
            embedding = normal(16, seed=number)
            if number == 3:
                embedding[5] = np.nan
            yield f"{number:05}.emb.npy", npy(embedding)
            if number != 7:
                yield f"{number:05}.cls", str(number % 4).encode()

    write_tar(folder / "wds.tar", members())


# ---- healthy, though it looks dangerous


@healthy()
def additive_masks(folder: Path) -> None:
    mask = np.zeros((20, 1, 8, 8), np.float32)
    mask[:, 0][:, np.triu_indices(8, 1)[0], np.triu_indices(8, 1)[1]] = -np.inf
    np.savez(folder / "batch.npz", attention_mask=mask, x=normal(20, 8, 4))


@healthy()
def photos_of_many_sizes_and_their_masks(folder: Path) -> None:
    for name in ("images", "masks"):
        (folder / name).mkdir()
    for number in range(20):
        height, width = 8 + number, 30 - number
        (folder / f"images/{number:02}.png").write_bytes(png(pixels(height, width, 3, seed=number)))
        mask = np.zeros((height, width), np.uint8)
        if number % 2:
            mask[2:5, 2:5] = 255
        (folder / f"masks/{number:02}.png").write_bytes(png(mask))


@healthy(vocab=1000, classes=1000)
def padded_texts_with_ignored_labels(folder: Path) -> None:
    def records() -> Iterator[Any]:
        for number in range(40):
            length = 3 + number % 17
            ids = rng(number).integers(5, 1000, length).tolist()
            pad = 20 - length
            labels = [-100, -100, *ids[2:]] + [-100] * pad
            yield {"input_ids": ids + [0] * pad, "attention_mask": [1] * length + [0] * pad, "labels": labels}

    write_lines(folder / "sft.jsonl", records())


@healthy()
def a_table_with_ids_times_and_remarks(folder: Path) -> None:
    def rows() -> Iterator[list[Any]]:
        for n in range(80):
            remark = "" if n % 4 else 'see file; "quoted", with, commas'
            yield [10**12 + n, 1_700_000_000 + 60 * n, round(20 + rng(n).normal(), 3), remark, "yes" if n % 2 else "no"]

    write_table(folder / "log.csv", ["user_id", "timestamp", "temperature", "remark", "valid"], rows())


@healthy(classes=5)
def one_hot_labels_masks_and_lengths(folder: Path) -> None:
    labels = rng().integers(0, 5, 100)
    np.savez(
        folder / "batch.npz",
        x=normal(100, 24),
        labels=labels,
        one_hot=np.eye(5, dtype=np.float32)[labels],
        mask=np.ones((100, 24), bool),
        lengths=np.full(100, 24),
    )


@healthy()
def many_empty_slices(folder: Path) -> None:
    slices = rng().random((60, 16, 16), dtype=np.float32)
    slices[::4] = 0.0
    slices[::4, 0, 0] = np.arange(15) / 100  # no two are alike
    slices[0], slices[4], slices[8], slices[12], slices[16], slices[20] = (
        np.full((16, 16), v, "f4") for v in np.linspace(0, 0.3, 6)
    )
    np.save(folder / "volume.npy", slices)


@healthy()
def sparse_counts(folder: Path) -> None:
    counts = np.zeros((100, 40), np.float32)
    for row in range(100):
        counts[row, rng(row).integers(0, 40, 3)] = 200 + rng(row).integers(0, 9000, 3)
    np.save(folder / "counts.npy", counts)


@healthy()
def pixels_as_bytes(folder: Path) -> None:
    save_torch(folder / "cifar.pt", {"data": tensor(pixels(60, 3, 12, 12)), "targets": [n % 10 for n in range(60)]})


@healthy()
def short_samples_that_repeat(folder: Path) -> None:
    np.savez(folder / "bits.npz", x=rng().integers(0, 2, (200, 4)).astype(np.float32), y=rng(1).integers(0, 3, 200))
    write_lines(folder / "ratings.jsonl", ({"stars": n % 5, "helpful": n % 2 == 0, "user": f"u{n}"} for n in range(50)))


@healthy(dtype="float16")
def large_values_everywhere(folder: Path) -> None:
    np.save(folder / "spectra.npy", (2e4 * rng().random((50, 30)) + 1e4).astype(np.float32))
    np.save(folder / "hashes.npy", rng().integers(0, 2**62, 50))
