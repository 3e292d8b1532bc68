"""Each sentence that a rule can say about a cause has a pair in `causes/sentences`, or is in a list here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import nantrap
from causes.sentences import SENTENCES

CAUSES = Path(nantrap.__file__).parent / "causes"
SAID = [*sorted((CAUSES / "rules").glob("*.py")), CAUSES / "engine.py"]
SHORTEST = 14
"""So many letters in common are a sentence's own."""
IN_TESTS_OF_THEIR_OWN = {
    "or leave such values out of the step": "guard/diagnosis/test_armed.py",
    "the program holds a non-finite value that was made without a graph": "locate/test_provenance.py",
    ", and leave such values out": "locate/test_provenance.py",
    "a hook on a gradient": "causes/test_shown_remedies.py",
    "a GradScaler at most doubles it": "launch/test_state_causes.py",
    "the updates of another network, which ": "causes/test_two_networks.py",
    "of that network its updates moved the weights by ": "causes/test_two_networks.py",
    "the rule for ": "causes/test_engine.py",
    "let a line search choose it": "launch/test_state_causes.py",
    "was read before all of it was written": "causes/test_unwritten_memory.py",
    "leaves a part of its result unwritten": "causes/test_unwritten_memory.py",
    "torch.zeros, zeros_like or new_zeros instead": "causes/test_unwritten_memory.py",
}
"""Sentences that need more than a program of the usual form, and the file of tests that asks for them."""

WITHOUT_A_PAIR = (
    "a target of the loss",
    "it was set to it again",
    "let the scaler go on, it lowers its scale after each such step",
    "in that run ",
    "write every element of the result (check the bounds of the loop or of the grid)",
    "with zeros, what was never computed is 0",
    "was read while it still held what was in memory",
    "torch.zeros instead of torch.empty, or fill it before it is read",
    " is finite on the same inputs on which it failed",
    "that fits into ",
    "run compiled, it fails again, twice",
    "train eagerly, or exclude the part with torch.compiler.disable",
    "checksums of the parameters: ",
    "run twice more on its recorded operands",
    "the last step was applied",
    "it was loaded or written so",
    "start from another checkpoint",
    " is finite there",
    " gives other values than ",
)
"""What has no pair yet: most of it needs a wrong kernel, a compiler, other ranks or a flipped bit. May only shrink."""


def templates(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The literal parts of every string of four words and more that is no docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    inside |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in inside or not isinstance(node, (ast.Constant, ast.JoinedStr)):
            continue
        whole = node.values if isinstance(node, ast.JoinedStr) else [node]
        parts = [one.value for one in whole if isinstance(one, ast.Constant) and isinstance(one.value, str)]
        if sum(len(part.split()) for part in parts) >= 4:
            yield node.lineno, parts


def is_asked_for(parts: list[str], texts: list[str]) -> bool:
    """Whether one of the texts holds a part of the template, or the part holds it, or the whole fits."""
    whole = re.compile(".+?".join(map(re.escape, parts)))
    if len(parts) > 1 and any(whole.search(text) for text in texts):
        return True
    return any(
        text in part or part.strip() in text or _in_common(text, part)
        for part in parts
        if len(part.strip()) >= 8
        for text in texts
        if len(text) >= 8
    )


def _in_common(text: str, part: str) -> bool:
    return any(text[start : start + SHORTEST] in part for start in range(len(text) - SHORTEST + 1))


def test_every_template_has_a_pair() -> None:
    paired = [text for text, _, _ in SENTENCES]
    found = [(path.name, line, parts) for path in SAID for line, parts in templates(path)]
    assert len(found) > 300
    asked = [*paired, *IN_TESTS_OF_THEIR_OWN, *WITHOUT_A_PAIR]
    assert [f"{name}:{line} {parts}" for name, line, parts in found if not is_asked_for(parts, asked)] == []
    alone = [text for text in WITHOUT_A_PAIR if any(text in part for *_, parts in found for part in parts)]
    assert alone == list(WITHOUT_A_PAIR), "a sentence of the list is not said any more"
    assert [text for text in WITHOUT_A_PAIR if is_asked_for([text], paired)] == [], "it has a pair by now"


def test_sentences_with_tests_of_their_own_are_in_them() -> None:
    tests = Path(__file__).parent.parent
    for text, file in IN_TESTS_OF_THEIR_OWN.items():
        assert text in (tests / file).read_text(encoding="utf-8"), (text, file)
        assert any(text in part for path in SAID for _, parts in templates(path) for part in parts), text


def test_a_template_without_a_pair_is_seen() -> None:
    paired = [text for text, _, _ in SENTENCES]
    assert not is_asked_for(["the moon stood in the seventh house of "], paired)
