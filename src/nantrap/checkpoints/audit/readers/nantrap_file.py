"""The files of a `CheckpointStore`: safetensors whose header also holds the rest of the state, and a checksum.

The store's `manifest.json`, in the same folder, keeps a hash of each:
{"schema": "nantrap.manifest/1", "files": {"step-000100.safetensors": {"bytes": 1234, "sha256": "…"}}}
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Final

from nantrap.checkpoints.audit.contents import Contents, UnreadableError
from nantrap.checkpoints.audit.crc32 import combine
from nantrap.checkpoints.audit.files import ByteSource, FileSystem, as_file, read_text
from nantrap.checkpoints.audit.readers import safetensors
from nantrap.checkpoints.audit.verdict import CheckpointProblem, checkpoint_problem
from nantrap.errors import FormatError
from nantrap.incident.wording import escaped

_HEAD = b'{"__metadata__":{"nantrap.checkpoint":'


def recognise(head: bytes) -> bool:
    """A safetensors header that begins with our mark."""
    return safetensors.recognise(head) and head[8:].startswith(_HEAD)


def read(source: ByteSource) -> Contents:
    """Reads a safetensors file of nantrap; names become paths, by which roles are known, and the JSON is the tree."""
    from nantrap.record.structure import unpack  # takes a tenth of a second, so it is imported only for stores

    contents = safetensors.read(source)
    metadata = contents.tree["metadata"] if isinstance(contents.tree, dict) else {}
    try:
        described = json.loads(metadata["structure"])
        tree = {name: unpack(value, None) for name, value in described["state"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, FormatError) as error:
        text = f"the description of the state in the header is damaged: {escaped(repr(error))}"
        raise UnreadableError("NT908", text) from error
    extents = tuple(
        extent._replace(is_sealed=True, tensors=tuple(t._replace(path=_path(extent.label)) for t in extent.tensors))
        for extent in contents.extents
    )
    seal = (str(metadata.get("structure")), str(metadata.get("crc32")))
    return contents._replace(format="nantrap", extents=extents, tree=tree, seal=seal)


def check_seal(contents: Contents, crcs: Mapping[str, int]) -> list[CheckpointProblem]:
    """One problem if names, dtypes, shapes or bytes are not those that were written. `crcs` are of the extents."""
    if contents.seal is None or contents.problems:
        return []  # what is wrong with the header was reported
    structure, expected = contents.seal
    crc = zlib.crc32(structure.encode())
    for extent in contents.extents:
        if extent.label not in crcs or not extent.tensors:
            return []  # the file became shorter meanwhile, and that was reported
        tensor = extent.tensors[0]
        crc = zlib.crc32(line_of(extent.label, tensor.dtype.name, tensor.shape), crc)
        crc = combine(crc, crcs[extent.label], extent.size)
    if f"{crc:08x}" == expected:
        return []
    text = "its bytes or its header do not match their checksum: the file was changed after it was saved"
    return [checkpoint_problem("NT908", text)]


def line_of(name: str, dtype: str, shape: tuple[int, ...]) -> bytes:
    """What the checksum covers of the table of tensors."""
    return f"{name} torch.{dtype} {shape}\n".encode()


def _path(name: str) -> tuple[str, ...]:
    """`model.blocks.0.weight` is the tensor `blocks.0.weight` of the section `model`."""
    section, _, rest = name.partition(".")
    return (section, *rest.split(".")) if section == "optimizer" else (section, rest) if rest else (section,)


# ---- the hashes that a store keeps of its files


MANIFEST: Final = "manifest.json"
MANIFEST_SCHEMA: Final = "nantrap.manifest/1"


def expected_hash(files: FileSystem, path: str) -> str | None:
    """The SHA-256 that the manifest in the file's folder gives for it, or `None` if there is none."""
    name = path.replace("\\", "/").rpartition("/")[2]
    folder = path[: len(path) - len(name)] or "."
    entry = files.stat(files.join(folder, MANIFEST))
    if entry is None or entry.is_folder:
        return None
    try:
        content = json.loads(read_text(files, entry.path))
        if content["schema"] != MANIFEST_SCHEMA:
            return None
        digest = content["files"][name]["sha256"]
    except (ValueError, KeyError, TypeError, RecursionError, OSError):
        return None  # the manifest.json of another program
    return digest if isinstance(digest, str) else None


def check_hash(files: FileSystem, source: ByteSource, *, whole: bool) -> list[CheckpointProblem]:
    """One problem if the file is not the one that was hashed; a warning if it is whole by its own checksum.

    The manifest is read again before anything is said: a store may have saved under this name while the file was read.
    """
    expected = expected_hash(files, source.name)
    if expected is None:
        return []
    from nantrap.record.durable import sha256_of  # takes a tenth of a second, so it is imported only for stores

    digest = sha256_of(as_file(source))
    if digest in (expected, expected_hash(files, source.name)) or source.changed():
        return []
    if whole:
        text = f"it is whole, but not the file that {MANIFEST} lists under this name: another file has taken its place"
        return [checkpoint_problem("NT908", text, severity="warning")]
    return [checkpoint_problem("NT908", f"its SHA-256 is not the one in {MANIFEST}: it was changed after it was saved")]
