"""Images through Pillow: inside other files, and a folder of them.

In a folder each file is one sample, and the folder is the dataset that its copies and its channels belong to.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nantrap.doctor.data.findings import DataFinding, data_finding
from nantrap.doctor.data.rows import Array
from nantrap.doctor.data.shards import CHANGED, UnreadableDataError
from nantrap.doctor.data.stored import open_source
from nantrap.errors import MissingExtraError
from nantrap.incident.wording import counted

EXTENSIONS = frozenset((
    ".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm",
))  # fmt: skip
_SHORT = 16
_SCENERY = frozenset(("mask", "masks", "label", "labels", "annotation", "annotations", "gt", "groundtruth", "seg"))
_MAGICS = (b"\x89PNG", b"\xff\xd8\xff", b"BM", b"GIF8", b"II*\0", b"MM\0*", b"P4", b"P5", b"P6")
_MODES = {"P": "RGB", "PA": "RGBA", "1": "L", "YCbCr": "RGB", "LAB": "RGB", "HSV": "RGB"}


def is_image(head: bytes) -> bool:
    """Whether bytes begin like an image file."""
    return head.startswith(_MAGICS) or (head[:4] == b"RIFF" and head[8:12] == b"WEBP")


def decode(data: bytes) -> Array:
    """The pixels of an encoded image, height first, channels last if there are several."""
    image_module = _pillow()
    if not data:
        raise UnreadableDataError("the file is empty")
    try:
        with image_module.open(io.BytesIO(data)) as image:
            image.load()
            converted = image.convert(_MODES[image.mode]) if image.mode in _MODES else image
            return np.array(converted)
    except Exception as error:  # Pillow's decoders raise whatever damaged bytes lead to
        if is_image(data[:16]):
            raise UnreadableDataError(f"the image is cut or damaged: {_words(error)}") from error
        raise UnreadableDataError(f"not an image: {_words(error)}") from error


def _words(error: Exception) -> str:
    text = str(error).partition("\n")[0]
    return "unknown format" if "cannot identify" in text else text[:120] or type(error).__name__


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtraError("Pillow", extra="data") from error
    return Image


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
