"""Fuzz every reader with atheris, for a stated time: `make fuzz SECONDS=600`.

The first byte of the input chooses the reader. What is promised: any bytes end in a result or in an error of nantrap,
never in another exception, and a file that holds a call of `posix.mkdir` is never called safe.

    python tests/fuzzing.py FOLDER -max_total_time=600     FOLDER keeps the inputs that reached new code
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tarfile
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent))

with atheris.instrument_imports(include=["nantrap"]):
    from nantrap import health
    from nantrap.checkpoints.audit import auditing
    from nantrap.checkpoints.audit.contents import UnreadableError
    from nantrap.checkpoints.audit.files import BytesSource
    from nantrap.checkpoints.audit.pickles import PickleError, read_pickle
    from nantrap.checkpoints.audit.readers import read_contents
    from nantrap.checkpoints.audit.trust import judge
    from nantrap.checkpoints.store.config_rate import configured_rate
    from nantrap.doctor.data import check_data
    from nantrap.errors import NantrapError
    from nantrap.record import open_run, read_bundle

PLACE = Path(tempfile.mkdtemp(prefix="nantrap-fuzz-"))


def _contents(data: bytes) -> None:
    with contextlib.suppress(UnreadableError):
        read_contents(BytesSource(data, name="x"))


def _pickle(data: bytes) -> None:
    with contextlib.suppress(PickleError):
        judge(read_pickle(data))


def _file(data: bytes) -> None:
    path = PLACE / "a.pt"
    path.write_bytes(data)
    json.dumps(auditing.audit(path).to_dict(), allow_nan=False)


def _folder(data: bytes) -> None:
    for name in (".metadata", "model.safetensors.index.json", "trainer_state.json", "manifest.json"):
        (PLACE / "folder").mkdir(exist_ok=True)
        (PLACE / "folder" / name).write_bytes(data)
    (PLACE / "folder" / "model.safetensors").write_bytes(b"")
    auditing.audit(PLACE / "folder")


def _bundle(data: bytes) -> None:
    folder = PLACE / "bundle"
    folder.mkdir(exist_ok=True)
    (folder / "bundle.json").write_bytes(data)
    with contextlib.suppress(NantrapError):
        read_bundle(folder)


def _journal(data: bytes) -> None:
    path = PLACE / "journal-r0.jsonl"
    path.write_bytes(data)
    with contextlib.suppress(NantrapError):
        open_run(path)


def _config(data: bytes) -> None:
    path = PLACE / f"config.{('yaml', 'json', 'py')[len(data) % 3]}"
    path.write_bytes(data)
    with contextlib.suppress(NantrapError):
        configured_rate(path)


_EXTENSIONS = ("npy", "npz", "h5", "jsonl", "csv", "parquet", "arrow", "tar", "tgz", "pt")


def _data(data: bytes) -> None:
    """A file of data: the first byte chooses its kind."""
    path = PLACE / f"data.{_EXTENSIONS[data[0] % len(_EXTENSIONS)] if data else 'csv'}"
    path.write_bytes(data[1:])
    with contextlib.suppress(NantrapError):
        check_data(path)


def _log(data: bytes) -> None:
    """A journal or log, as `check` and `report` read it."""
    path = PLACE / "log.jsonl"
    path.write_bytes(data)
    with contextlib.suppress(NantrapError):
        health.judge(open_run(path))


TARGETS = (_contents, _pickle, _file, _folder, _bundle, _journal, _config, _data, _log)


def one(data: bytes) -> None:
    """One input."""
    if data:
        TARGETS[data[0] % len(TARGETS)](data[1:])


def hostile_data() -> dict[str, bytes]:
    """Small files that describe much: compressed zeros, links in a ring, long lines, many names and members."""
    import h5py
    import numpy as np
    import pyarrow
    import pyarrow.parquet

    made: dict[str, bytes] = {}
    for name, save in (
        ("a.npy", lambda file: np.save(file, np.zeros((2, 3)))),
        ("a.npz", lambda file: np.savez_compressed(file, x=np.zeros(100_000), y=np.zeros((9, 9), order="F"))),
        ("a.parquet", lambda file: pyarrow.parquet.write_table(pyarrow.table({"a": np.zeros(5000)}), file)),
    ):
        stream = io.BytesIO()
        save(stream)
        made[name] = stream.getvalue()
    stream = io.BytesIO()
    with h5py.File(stream, "w") as file:
        file["a/x"] = np.ones(3)
        file["a/up"], file["a/ring"] = h5py.SoftLink("/"), file["a"]
    made["a.h5"] = stream.getvalue()
    sink = pyarrow.BufferOutputStream()
    table = pyarrow.table({"a": np.zeros(5000)})
    options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    with pyarrow.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    made["a.arrow"] = sink.getvalue().to_pybytes()
    for name in ("a.tar", "a.tgz"):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w:gz" if name == "a.tgz" else "w") as archive:
            for number in range(20):
                archive.addfile(tarfile.TarInfo(f"{number}.cls"), None)
        made[name] = stream.getvalue()
    made["a.jsonl"] = b'{"a":' * 70 + b"1" + b"}" * 70 + b'\n{"x": [[1], [2, 3]]}\n'
    made["a.csv"] = b'a,b\n1,"x\ny"\n2,nan\n"'
    return made


def seeds(folder: Path) -> None:
    """The attacks of the tests and a few whole files, for every target."""
    from checkpoints.audit.attacks import attacks

    folder.mkdir(parents=True, exist_ok=True)
    for number, raw in enumerate(attacks().values()):
        for target in (0, 1, 2):
            (folder / f"attack-{number}-{target}").write_bytes(bytes([target]) + raw)
    for name, raw in hostile_data().items():
        kind = _EXTENSIONS.index(name.rpartition(".")[2])
        (folder / f"data-{name}").write_bytes(bytes([TARGETS.index(_data), kind]) + raw)
    (folder / "log-names").write_bytes(
        bytes([TARGETS.index(_log)]) + b"".join(b'{"step": %d, "k%d": {"a": [1, 2]}}\n' % (i, i) for i in range(50))
    )
    texts = (
        b'{"schema": "nantrap.bundle/1", "files": {}}',
        b'{"weight_map": {"a": "b"}}',
        b"lr: 0.1\n",
        b'{"step": 1}\n',
    )
    for number, text in enumerate(texts):
        for target in (3, 4, 5, 6):
            (folder / f"text-{number}-{target}").write_bytes(bytes([target]) + text)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    seeds(Path(sys.argv[1]))
    atheris.Setup([sys.argv[0], *sys.argv[1:], "-rss_limit_mb=3000", "-timeout=60"], one)
    atheris.Fuzz()
