"""Images through Pillow: a folder of image files, in which each file is one sample, and images inside other files."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from nantrap.doctor.data.rows import Array
from nantrap.doctor.data.shards import UnreadableDataError
from nantrap.errors import MissingExtraError

EXTENSIONS = frozenset((
    ".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm",
))  # fmt: skip
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
