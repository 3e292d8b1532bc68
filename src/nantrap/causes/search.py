"""Find a cause without its name: by an operation (`sqrt`), a symptom (`loss is nan after resume`) or any word."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

_WEIGHTS = {"slug": 8.0, "title": 6.0, "fix": 2.0, "what": 2.0, "why": 1.5, "example": 1.5, "proof": 0.5}
_SMALL = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be but by for from has have i if in is it its my not of on or so that the then this to was "
        "when why with becomes goes gets turns loss nan inf infinite training train model step value values error",
    )
)
_SAME = {
    "mask": "masked", "exploding": "explode", "explodes": "explode", "amp": "float16", "fp16": "float16",
    "half": "float16", "bf16": "bfloat16", "batchnorm": "buffer", "gradscaler": "scale", "resume": "restored",
    "resuming": "restored", "lr": "rate", "ddp": "rank", "acos": "arccos", "logarithm": "log", "dataset": "batch",
}  # fmt: skip


class Found(Protocol):
    """What can be searched: the page of a cause or of a check."""

    @property
    def slug(self) -> str:
        """Its short name."""

    @property
    def title(self) -> str:
        """It in one line."""


T = TypeVar("T", bound=Found)


def search(pages: Iterable[T], query: str, *, most: int = 8) -> list[T]:
    """The pages that mention these words, the best first. Words that are on every page do not count."""
    wanted = [word for word in _words(query) if word not in _SMALL] or _words(query)
    scored: list[tuple[float, int, T]] = []
    for number, page in enumerate(pages):
        parts = [_score(page, word) for word in wanted]
        if all(part > 0 for part in parts) and parts:
            scored.append((-sum(parts), number, page))
    return [page for _, _, page in sorted(scored, key=lambda entry: entry[:2])[:most]]


def _score(page: Found, word: str) -> float:
    """How well a page answers one word: whole words count more than parts, and each section has its weight."""
    also = _SAME.get(word)
    forms: Sequence[str] = (word, also) if also is not None else (word,)
    best = 0.0
    for name, weight in _WEIGHTS.items():
        text = str(getattr(page, name, "")).lower().replace("_", " ")
        for form in forms:
            if re.search(rf"\b{re.escape(form)}\b", text):
                best += weight
                break
            if len(form) > 3 and form in text:
                best += 0.4 * weight
                break
    return best


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9.]+", text.lower().replace("_", " ").removeprefix("aten."))
