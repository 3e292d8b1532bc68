"""Find a page: by code, by slug, or without a name: by an operation (`sqrt`), a symptom (`loss is nan after resume`).

Three commands report codes: the guard names causes (NT203), `nantrap doctor` checks (NT851), `nantrap data` rules
(NT151). A user who reads a code need not know which one it was.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Final

from nantrap.errors import UsageError
from nantrap.incident.checks import CHECKS, DATA_RULES, DataRule
from nantrap.incident.codes import BY_CODE, BY_SLUG
from nantrap.pages.page import Page, read_page

_OF_CHECKPOINTS: Final = frozenset(f"NT{number}" for number in range(901, 914))
"""The codes of `nantrap audit`, which a test compares with its own table."""


def explain(code_or_slug: str) -> str:
    """The page of a cause, of a check of `nantrap doctor` or of a rule of `nantrap data`, as text.

    Args:
        code_or_slug: `NT203` or `softmax_fully_masked_row`, `NT851` or `isnan_misses_inf`, `NT153` or `outlier`; case
            and `-` for `_` do not matter. A slug that a cause and a rule of `nantrap data` share means the cause.

    Raises:
        UsageError: There is no such code or slug; the message names those that are spelt alike.

    Example:
        >>> import nantrap
        >>> print(nantrap.explain("NT203").splitlines()[0])
        NT203 softmax_fully_masked_row: Softmax over a row in which every position is masked
        >>> print(nantrap.explain("NT851").splitlines()[0])
        NT851 isnan_misses_inf: A loop skips bad steps by isnan, which lets Inf through
    """
    return find_page(code_or_slug).text()


def find_page(code_or_slug: str) -> Page | DataRule:
    """The page behind a code or a slug; a rule of `nantrap data` is its own page.

    Raises:
        UsageError: There is no such code or slug; the message names those that are spelt alike.
    """
    if not isinstance(code_or_slug, str):
        raise UsageError(f"explain({code_or_slug!r:.200}): expected a code or a slug, such as 'NT203'")
    code = code_or_slug.strip().upper()
    slug = code_or_slug.strip().lower().replace("-", "_")
    check = next((check for check in CHECKS if code == check.code or slug == check.slug), None)
    row = check or BY_CODE.get(code) or BY_SLUG.get(slug.replace(" ", "_"))
    if row is not None:
        return read_page(row)
    rule = next((rule for rule in DATA_RULES.values() if code == rule.code or slug == rule.slug), None)
    if rule is not None:
        return rule
    if code in _OF_CHECKPOINTS:
        raise UsageError(
            f"{code} is a problem of a checkpoint file, not a cause of a failed step; `nantrap audit` "
            "prints what it means and what to do"
        )
    raise UsageError(_no_such_cause(code_or_slug))


def _no_such_cause(given: str) -> str:
    known = [*BY_CODE, *BY_SLUG]
    form = given.strip().upper() if given.strip()[:2].upper() == "NT" else given.strip().lower().replace("-", "_")
    near = difflib.get_close_matches(form, known, n=3, cutoff=0.6)
    near += [slug for slug in BY_SLUG if len(form) > 2 and form in slug and slug not in near][: 3 - len(near)]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return f"there is no cause {given!r}; {hint}`nantrap explain` lists every code and slug"


# ---- by words

_WEIGHTS: Final = {"slug": 8.0, "title": 6.0, "fix": 2.0, "what": 2.0, "why": 1.5, "example": 1.5, "proof": 0.5}
_SMALL: Final = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be but by for from has have i if in is it its my not of on or so that the then this to was "
        "when why with becomes goes gets turns loss nan inf infinite training train model step value values error",
    )
)
_SAME: Final = {
    "mask": "masked", "exploding": "explode", "explodes": "explode", "amp": "float16", "fp16": "float16",
    "half": "float16", "bf16": "bfloat16", "batchnorm": "buffer", "gradscaler": "scale", "resume": "restored",
    "resuming": "restored", "lr": "rate", "ddp": "rank", "acos": "arccos", "logarithm": "log", "dataset": "batch",
}  # fmt: skip


def search(pages: Iterable[Page], query: str, *, most: int = 8) -> list[Page]:
    """The pages that mention these words, the best first. Words that are on every page do not count."""
    wanted = [word for word in _words(query) if word not in _SMALL] or _words(query)
    scored: list[tuple[float, int, Page]] = []
    for number, page in enumerate(pages):
        parts = [_score(page, word) for word in wanted]
        if all(part > 0 for part in parts) and parts:
            scored.append((-sum(parts), number, page))
    return [page for _, _, page in sorted(scored, key=lambda entry: entry[:2])[:most]]


def _score(page: Page, word: str) -> float:
    """How well a page answers one word: whole words count more than parts, and each section has its weight."""
    also = _SAME.get(word)
    forms: Sequence[str] = (word, also) if also is not None else (word,)
    best = 0.0
    texts = {"slug": page.slug, "title": page.title, "what": page.what, **page.sections}
    for name, weight in _WEIGHTS.items():
        text = texts.get(name, "").lower().replace("_", " ")
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
