"""The bundle of an incident: a folder that can be read, and replayed, elsewhere. Safetensors and JSON, never a pickle.

    incidents/001204-r0/
      incident.json       the incident
      diagnostic.txt      the same as text
      bundle.json         what is in the folder, with hashes
      state.safetensors   parameters, buffers, optimizer state   (kind="full")
      replay.json         random streams, optimizer, the guilty operation's arguments, the batch's structure
      batch.safetensors   only when data may be written

Written under a temporary name and renamed, so it is complete or absent; never overwritten.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nantrap._version import __version__
from nantrap.errors import FormatError, path_argument
from nantrap.incident import Incident
from nantrap.incident.wording import escaped
from nantrap.record.durable import flush_folder, folder_beside, remove_folder, sha256_of

if TYPE_CHECKING:
    from torch import Tensor

SCHEMA = "nantrap.bundle/1"
_KEEP_FIRST = 5
_MOST_JSON = 64 << 20


@dataclass(slots=True)
class Material:
    """What a replay needs beyond the incident: tensors by file, and JSON values."""

    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        # a sparse tensor does not tell its size: that of the dense one, and no bundle can hold either
        return sum(each.numel() * each.element_size() for group in self.tensors.values() for each in group.values())


@dataclass(frozen=True, slots=True)
class ReadBundle:
    """A bundle as it was read and verified."""

    path: Path
    incident: Incident
    kind: str
    values: Mapping[str, Any]
    files: tuple[str, ...]

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors of one file (`state`, `batch`, `origin`); empty if it is not part of the bundle."""
        from safetensors.torch import load_file

        if f"{name}.safetensors" not in self.files:
            return {}
        return load_file(self.path / f"{name}.safetensors")


def place_of_bundle(run_dir: str | os.PathLike[str], incident: Incident) -> Path:
    """The folder that the bundle of an incident gets, if it is written now."""
    return _free_place(Path(run_dir) / "incidents" / f"{incident.step:06d}-r{incident.rank}")


def write_bundle(
    run_dir: str | os.PathLike[str],
    incident: Incident,
    *,
    text: str,
    material: Material | None = None,
    most: int = 20,
) -> Path:
    """Write the bundle of an incident under `run_dir/incidents` and return its folder."""
    folder = Path(run_dir) / "incidents"
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{incident.step:06d}-r{incident.rank}"
    with folder_beside(folder, name) as temporary:
        _write(temporary / "diagnostic.txt", text + "\n")
        if material is not None:
            _write(temporary / "replay.json", json.dumps(material.values) + "\n")
            _write_tensors(temporary, material)
        files = {path.name: sha256_of(path) for path in sorted(temporary.iterdir())}
        kind = "light" if material is None else "full"
        target = _free_place(folder / name)
        while True:
            document = {**incident.to_dict(), "bundle": str(target)}
            _write(temporary / "incident.json", json.dumps(document, indent=2) + "\n")
            files["incident.json"] = sha256_of(temporary / "incident.json")
            about = {"schema": SCHEMA, "kind": kind, "nantrap": __version__, "files": dict(sorted(files.items()))}
            _write(temporary / "bundle.json", json.dumps(about, indent=2) + "\n")
            try:
                os.rename(temporary, target)
                break
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                target = _free_place(folder / name)  # another process of the run took the name meanwhile
    flush_folder(folder)
    _thin_out(folder, incident.rank, most)
    return target


def read_bundle(path: str | os.PathLike[str]) -> ReadBundle:
    """Read a bundle and verify its hashes. A damaged or foreign folder gets an error that says what is wrong."""
    folder = Path(path_argument(path, "replay", "the folder of an incident, such as 'runs/exp1/incidents/000017-r0'"))
    if folder.name in ("bundle.json", "incident.json"):
        folder = folder.parent
    try:
        about = _read_json(folder / "bundle.json")
    except (FileNotFoundError, NotADirectoryError):
        raise FormatError(
            f"{folder}: no bundle here (bundle.json is missing); give the folder of an incident"
        ) from None
    if not isinstance(about, dict) or about.get("schema") != SCHEMA:
        found = about.get("schema") if isinstance(about, dict) else about
        raise FormatError(f"{folder / 'bundle.json'}: field schema: expected {SCHEMA}, got {found!r:.80}")
    files = about.get("files")
    if not isinstance(files, dict):
        raise FormatError(f"{folder / 'bundle.json'}: field files: expected an object of name to hash")
    for name, expected in files.items():
        if not re.fullmatch(r"\w[\w.-]*", name):
            raise FormatError(f"{folder / 'bundle.json'}: field files: {escaped(name)} is not a file name of a bundle")
        file = folder / name
        if not file.is_file():
            raise FormatError(f"{folder}: {name} is missing; the bundle is incomplete")
        if sha256_of(file) != expected:
            raise FormatError(f"{file}: its hash differs from the one in bundle.json; the file is damaged")
    if "incident.json" not in files:
        raise FormatError(f"{folder}: incident.json is not part of the bundle; it is incomplete")
    values = _read_json(folder / "replay.json") if "replay.json" in files else {}
    if not isinstance(values, dict):
        raise FormatError(f"{folder / 'replay.json'}: expected an object")
    incident = Incident.from_dict(_read_json(folder / "incident.json"))
    return ReadBundle(folder, incident, str(about.get("kind")), values, tuple(files))


def _read_json(path: Path) -> Any:
    """A JSON file of a bundle. Never waits for a pipe, and reads no more than a bundle can hold."""
    try:
        if path.exists() and not path.is_file():
            raise FormatError(f"{path}: not a regular file")
        if path.stat().st_size > _MOST_JSON:
            raise FormatError(f"{path}: holds {path.stat().st_size:,} bytes; more than {_MOST_JSON:,} are not read")
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except FormatError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"{path}: cannot be read: {escaped(str(error))}") from None


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _write_tensors(folder: Path, material: Material) -> None:
    from safetensors.torch import save_file

    for name, tensors in material.tensors.items():
        # safetensors needs each tensor to own its memory, in order
        owned = {key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()}
        save_file(owned, folder / f"{name}.safetensors")


def _free_place(target: Path) -> Path:
    """The target, or the next free name: a resumed run may fail again at the same step."""
    candidate, number = target, 2
    while candidate.exists():
        candidate = target.with_name(f"{target.name}-{number}")
        number += 1
    return candidate


def _thin_out(folder: Path, rank: int, most: int) -> None:
    """Keep the first bundles and the last ones of this rank: many incidents must not fill the disk."""
    own = re.compile(rf"\d+-r{rank}(-\d+)?")
    times: dict[Path, int] = {}
    for path in folder.iterdir():
        if own.fullmatch(path.name) and path.is_dir():
            with contextlib.suppress(FileNotFoundError):  # another process removes too
                times[path] = path.stat().st_mtime_ns
    bundles = sorted(times, key=times.__getitem__)
    if len(bundles) <= most:
        return
    first = min(_KEEP_FIRST, most // 2)
    for path in bundles[first : len(bundles) - (most - first)]:
        remove_folder(path)
