"""What do scanners of pickles say about the same files: attacks that are real, and files that people save?

The files are those of the tests: `tests/checkpoints/audit/attacks.py`, each of which makes a folder when torch loads
it, and `fixtures/saved-by-people.tar.xz`, written by five Pythons and four libraries, all harmless.

    pip install picklescan fickling; python benchmarks/scanners.py

A scanner that is not installed is left out. `weights_only` is `torch.load(weights_only=True)`: it refuses or loads.
"""

from __future__ import annotations

import importlib.util
import io
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))


def by_nantrap(path: Path) -> bool:
    """Whether the file is called unsafe."""
    from nantrap.checkpoints.audit import audit

    return any(problem.severity == "error" for problem in audit(path).problems)


def by_weights_only(path: Path) -> bool:
    import torch

    try:
        torch.load(path, weights_only=True, map_location="cpu")
    except Exception:
        return True
    return False


def by_picklescan(path: Path) -> bool:
    from picklescan.scanner import scan_file_path

    result = scan_file_path(str(path))
    return bool(result.issues_count or result.scan_err)


def by_fickling(path: Path) -> bool:
    import zipfile

    import fickling.analysis
    import fickling.fickle

    data = path.read_bytes()
    if data.startswith(b"PK"):  # fickling looks at pickles; the archive's is taken out as Python's zipfile does it
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            data = archive.read(name)
    try:
        pickled = fickling.fickle.Pickled.load(data)
        severity = fickling.analysis.check_safety(pickled).severity
    except Exception:
        return True
    return severity > fickling.analysis.Severity.LIKELY_SAFE


SCANNERS: dict[str, tuple[str, Callable[[Path], bool]]] = {
    "nantrap audit": ("nantrap", by_nantrap),
    "torch weights_only": ("torch", by_weights_only),
    "picklescan": ("picklescan", by_picklescan),
    "fickling": ("fickling", by_fickling),
}


def harmless() -> dict[str, bytes]:
    """What people save, by name; only files that Python's own unpickler could load where their classes are."""
    found = {}
    with tarfile.open(ROOT / "tests/checkpoints/audit/fixtures/saved-by-people.tar.xz") as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            found[member.name] = file.read()
    return found


def as_torch_file(raw: bytes) -> bytes:
    """A plain pickle as `torch.save` would pack it: its pickle in an archive."""
    import torch

    buffer = io.BytesIO()
    writer = torch._C.PyTorchFileWriter(buffer)
    writer.write_record("data.pkl", raw, len(raw))
    writer.write_record("byteorder", b"little", 6)
    writer.write_end_of_file()
    return buffer.getvalue()


def main() -> None:
    warnings.simplefilter("ignore")
    from checkpoints.audit.attacks import REFUSED_BY_TORCH, attacks

    evil = {name: raw for name, raw in attacks().items() if not name.endswith(REFUSED_BY_TORCH)}
    good = {name: raw if name.startswith("torch") else as_torch_file(raw) for name, raw in harmless().items()}
    print(f"| | {len(evil)} attacks: called safe | {len(good)} harmless files: called unsafe |")
    print("| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for label, (package, unsafe) in SCANNERS.items():
            if importlib.util.find_spec(package) is None:
                print(f"| {label} | not installed | |")
                continue
            counts = []
            for files, wanted in ((evil, True), (good, False)):
                wrong = []
                for name, raw in files.items():
                    path = Path(folder) / "file.pt"
                    path.write_bytes(raw)
                    if unsafe(path) is not wanted:
                        wrong.append(name)
                counts.append(len(wrong))
                if "--names" in sys.argv:
                    print(f"{label}: {wrong}", file=sys.stderr)
            print(f"| {label} | {counts[0]} | {counts[1]} |", flush=True)


if __name__ == "__main__":
    main()
