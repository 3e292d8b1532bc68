"""A folder of images: each file is one sample, and the folder is the dataset its copies and its channels belong to."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from nantrap.doctor.data.findings import DataFinding, data_finding
from nantrap.doctor.data.readers.images import decode
from nantrap.doctor.data.shards import CHANGED, UnreadableDataError
from nantrap.doctor.data.stored import open_source
from nantrap.incident.wording import counted

_SHORT = 16
_SCENERY = frozenset(("mask", "masks", "label", "labels", "annotation", "annotations", "gt", "groundtruth", "seg"))


@dataclass(frozen=True, slots=True)
class Pixels:
    """What is kept of one image. `error` is set if it could not be read."""

    path: str
    size: int = 0
    digest: bytes = b""
    channels: int = 0
    constant: float | None = None
    bad: int = 0
    unscaled: bool = False
    error: str = ""


def look_at(paths: Sequence[str]) -> list[Pixels]:
    """Decode images and keep a few numbers of each."""
    return [_look_at(path) for path in paths]


def _look_at(path: str) -> Pixels:
    """The measures of one image; an error in words if it cannot be decoded."""
    size = 0
    try:
        with open_source(path) as source:
            size = source.size
            data = source.read(0, size)
            if source.changed() or len(data) < size:
                return Pixels(path, size, error=CHANGED)
        pixels = decode(data)
    except UnreadableDataError as error:
        return Pixels(path, size, error=str(error))
    flat = np.ascontiguousarray(pixels).reshape(pixels.shape[0] * pixels.shape[1], -1)
    hashed = hashlib.blake2b(repr((pixels.shape, str(pixels.dtype))).encode(), digest_size=16)
    hashed.update(flat.view(np.uint8).reshape(-1).data)
    floats = pixels.dtype.kind == "f"
    bad = int((~np.isfinite(flat)).sum()) if floats else 0
    constant = None
    if flat.size >= _SHORT and not bad and bool((flat == flat[0]).all()):
        constant = float(flat.flat[0])
    unscaled = False
    if floats and not bad:
        unscaled = bool(128 <= flat.max() <= 255 and flat.min() >= 0 and (flat == np.trunc(flat)).all())
    return Pixels(path, size, hashed.digest(), flat.shape[1], constant, bad, unscaled)


def judge_images(images: Iterable[Pixels], root: str) -> list[DataFinding]:
    """All findings of the images below one root. Masks are images too, but are expected to be alike."""
    findings: list[DataFinding] = []
    readable = []
    for image in images:
        if image.error:
            findings.append(data_finding("unreadable_file", image.path, None, (), 1, image.error))
        else:
            readable.append(image)
    pictures = [image for image in readable if not _is_mask(image.path, root)]
    for image in readable:
        if image.bad:
            findings.append(_finding("non_finite", image, f"{image.bad:,} pixels are NaN or Inf"))
    constant = [image for image in pictures if image.constant is not None]
    if len(constant) * 10 < len(pictures):
        findings += [_finding("constant_sample", image, "every pixel is the same") for image in constant]
    first: dict[bytes, str] = {}
    for image in pictures:
        original = first.setdefault(image.digest, image.path)
        if original != image.path:
            findings.append(_finding("duplicate_sample", image, f"the same pixels as {original}"))
    channels = Counter(image.channels for image in pictures)
    if len(channels) > 1:
        usual, count = channels.most_common(1)[0]
        if 2 * count > len(pictures):
            for image in pictures:
                if image.channels != usual:
                    text = f"{counted(image.channels, 'channel')}, most images have {usual}"
                    findings.append(_finding("shape_mismatch", image, text))
    for image in pictures:
        if image.unscaled:
            findings.append(_finding("scale_suspect", image, "float pixels are whole numbers up to 255"))
    return findings


def _finding(slug: str, image: Pixels, text: str) -> DataFinding:
    return data_finding(slug, image.path, None, (0,), 1, text)


def _is_mask(path: str, root: str) -> bool:
    relative = os.path.relpath(path, root) if "://" not in path else path
    folders = [part.lower() for part in relative.replace("\\", "/").split("/")]
    stem = folders[-1].partition(".")[0]
    return bool(_SCENERY & set(folders[:-1])) or stem.endswith(("_mask", "-mask", "_label", "_seg", "_gt"))
