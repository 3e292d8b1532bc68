"""From the text of a value to what it means: numbers, switches, precisions, optimizers."""

from __future__ import annotations

import math
import re
from typing import Any, Final, NamedTuple

from nantrap.doctor.configuration.setting import UNKNOWN

_NUMBER: Final = re.compile(r"[-+]?(\d[\d_]*\.?\d*|\.\d+)([eE][-+]?\d+)?$")
_UNRESOLVED: Final = re.compile(r"\$\{|\$\(|\$[A-Za-z_0-9@*#]|\{\{|<[a-z_ ]+>|^`")
_OPEN_WORDS: Final = frozenset({"auto", "???", "todo", "fixme"})
_NOTHING: Final = frozenset({"null", "none", "~", ""})


class Precision(NamedTuple):
    """`dtype` is float16, bfloat16 or float32; `weights` whether the weights themselves have it."""

    dtype: str
    weights: bool = False


def scalar(text: str) -> Any:
    """What an unquoted word in a configuration means: a number, a switch, nothing, text, or `UNKNOWN`."""
    word = text.strip()
    low = word.lower()
    if low in _OPEN_WORDS or _UNRESOLVED.search(word):
        return UNKNOWN
    if low in _NOTHING:
        return None
    if low == "true":
        return True
    if low == "false":
        return False
    found = as_number_text(word)
    return word if found is None else found


def as_number_text(word: str) -> float | int | None:
    """A number that is written as text (`1e-5` is text to YAML), or None."""
    if _NUMBER.match(word):
        plain = word.replace("_", "")
        try:
            return int(plain) if re.fullmatch(r"[-+]?\d+", plain) else float(plain)
        except ValueError:
            return None
    if word.lower().lstrip("+-").lstrip(".") in ("inf", "infinity"):
        return -math.inf if word.startswith("-") else math.inf
    return None


def number(value: Any) -> float | None:
    """A finite or infinite number, or None if it is none or unknown."""
    if isinstance(value, bool) or value is None or value is UNKNOWN:
        return None
    if isinstance(value, (int, float)):
        return None if isinstance(value, float) and math.isnan(value) else float(value)
    if isinstance(value, str):
        found = as_number_text(value.strip())
        return None if found is None else float(found)
    return None


def whole(value: Any) -> int | None:
    """A whole number, or None."""
    found = number(value)
    return int(found) if found is not None and math.isfinite(found) and found == int(found) else None


def switch(value: Any) -> bool | None:
    """True or False, or None if the value is not a switch or unknown."""
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, float)) and value in (0, 1):
        return bool(value)
    if isinstance(value, str):
        low = value.strip().lower()
        if low in ("true", "yes", "on", "1", "enabled"):
            return True
        if low in ("false", "no", "off", "0", "disabled"):
            return False
    return None


_BFLOAT16: Final = frozenset({"bf16", "bfloat16", "amp_bf16", "amp_bfloat16", "mixed_bf16", "mixed_bfloat16"})
_FLOAT16: Final = frozenset({"16", "fp16", "float16", "half", "f16", "amp_fp16", "mixed_fp16", "mixed_float16"})
_FLOAT32: Final = frozenset({"32", "fp32", "float32", "float", "full", "single", "f32"})


def precision(value: Any) -> Precision | None:
    """The dtype that a value names: `bf16`, `torch.float16`, `16-mixed`, 16, `bf16-true`, ... or None."""
    if isinstance(value, bool) or value is None or value is UNKNOWN:
        return None
    word = str(int(value)) if isinstance(value, float) and value == int(value) else str(value)
    word = word.strip().strip("\"'").lower().removeprefix("torch.").replace("-", "_")
    weights = False
    for ending in ("_true", "_mixed"):
        if word.endswith(ending):
            weights = ending == "_true"
            word = word.removesuffix(ending)
    for beginning in ("pure_", "full_"):
        if word.startswith(beginning):
            weights = True
            word = word.removeprefix(beginning)
    for dtype, names in (("bfloat16", _BFLOAT16), ("float16", _FLOAT16), ("float32", _FLOAT32)):
        if word in names:
            return Precision(dtype, weights and dtype != "float32")
    return None


def says_no(value: Any) -> bool:
    """Whether a precision setting says that there is no mixed precision: `no`, which YAML reads as False."""
    if value is False:
        return True
    return isinstance(value, str) and value.strip().lower() in ("no", "none", "off", "false")


_NOT_ADAM: Final = ("prodigy", "dadam", "dadapt", "d_adapt", "muon", "lamb", "lars", "adamp", "came", "sophia")


def is_adam(name: Any) -> bool | None:
    """Whether an optimizer belongs to the Adam family; None if its name does not show it."""
    if not isinstance(name, str):
        return None
    low = name.lower().rsplit(".", 1)[-1]
    if not low:
        return None
    if any(word in low for word in _NOT_ADAM):
        return False
    if "adam" in low:
        return True
    return False if any(word in low for word in ("sgd", "rmsprop", "adagrad", "adadelta", "lion", "lbfgs")) else None
