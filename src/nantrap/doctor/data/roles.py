"""What a field is for, by its name: a label, token ids, a mask, a length, something else.

`--labels` and `--mask` name the field directly; otherwise the usual names of datasets decide. The role selects which
rules apply: an attention mask of ones is healthy, a feature that is 1 everywhere is not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

FieldRole = Literal[
    "feature", "label", "target", "token", "mask", "input_length", "target_length", "identifier", "constant"
]
"""`target` is a label that is not range-checked, because `--labels` named another field."""

_LABELS = frozenset(("label", "labels", "target", "targets", "y", "cls", "class", "classes", "category", "tgt", "gt"))
_MASKS = frozenset(("mask", "masks", "attentionmask", "padmask"))
_TOKENS = frozenset(("tokens", "token", "inputids", "tokenids"))
_OF_TOKENS = frozenset((
    "ids", "input", "token", "tokens", "text", "decoder", "encoder", "src", "source", "prompt", "completion",
    "response", "context", "sentence", "word", "char", "byte", "bpe", "subword", "vocab", "output", "chosen",
    "rejected", "query", "question", "answer", "passage",
))  # fmt: skip
"""The words that may be next to `ids` in the name of token ids: `decoder_input_ids`, but not `image_ids`."""
_COUNTS = frozenset(("n", "num", "count", "counts", "total", "number"))
_LENGTHS = frozenset(("length", "lengths", "len", "lens", "frames", "duration", "steps"))
_TARGET_SIDE = frozenset(("target", "targets", "label", "labels", "tgt", "y", "output", "text", "transcript", "token"))
_IDENTIFIERS = frozenset((
    "id", "index", "idx", "key", "uid", "uuid", "guid", "time", "timestamp", "date", "epoch", "year", "seed", "offset",
    "offsets", "path", "filename", "file", "name", "position", "positions", "segment", "type", "speaker", "user",
    "zip", "zipcode", "phone", "row", "line", "shard", "rank", "version",
))  # fmt: skip
_CONSTANTS = frozenset((
    "mean", "std", "var", "scale", "shift", "classnames", "vocab", "meta", "metadata", "config", "weight", "weights",
    "bias", "names", "version", "stats", "fps", "rate",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class DataOptions:
    """What the user gave about the data.

    Attributes:
        classes: labels must lie in [0, classes).
        vocab: token ids must lie in [0, vocab).
        labels: the name of the label field.
        mask: the name of the mask field.
        dtype: the precision the data will be cast to; only `float16` matters.
    """

    classes: int | None = None
    vocab: int | None = None
    labels: str | None = None
    mask: str | None = None
    dtype: str | None = None


def role_of(name: str, options: DataOptions) -> FieldRole:
    """The role of a field, by its name.

    Args:
        name: `batch/attention_mask`, `train.labels`, or the stem of a file that holds one array.
        options: the names the user gave.
    """
    last = re.split(r"[./\\]", name)[-1] if name else ""
    if options.labels is not None and options.labels in (name, last):
        return "label"
    if options.mask is not None and options.mask in (name, last):
        return "mask"
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", last)]
    joined = "".join(words)
    if not words:
        return "feature"
    if joined in _MASKS or _MASKS & set(words):
        return "mask"
    if _LENGTHS & set(words) and (len(words) > 1 or words[0] in ("length", "lengths", "frames")):
        return "target_length" if _TARGET_SIDE & set(words) else "input_length"
    if _COUNTS & set(words):
        return "identifier"
    named_identifier = bool(_IDENTIFIERS & set(words)) or ("ids" in words and not set(words) <= _OF_TOKENS)
    if _LABELS & set(words) and not (words[-1] == "id" and words[0] not in _LABELS):
        return "label" if options.labels is None else "target"
    if (joined in _TOKENS or "ids" in words or _TOKENS & set(words)) and not named_identifier:
        return "token"
    if named_identifier:
        return "identifier"
    if joined in _CONSTANTS or words[-1] in _CONSTANTS:
        return "constant"
    return "feature"


def is_inverted_mask(name: str) -> bool:
    """PyTorch's `key_padding_mask` has ones where a position is left out, not where it is valid."""
    return "key_padding" in name.lower()


def is_image_name(name: str) -> bool:
    """Whether a field is called like an image."""
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}
    return bool(words & {"image", "images", "img", "imgs", "pixel", "pixels", "picture", "pictures", "photo", "photos"})
