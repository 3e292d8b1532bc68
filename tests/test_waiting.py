"""No test waits for another program without an end: on a busy machine such a test takes the whole suite with it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(path for folder in ("tests", "systems/tests") for path in (ROOT / folder).rglob("*.py"))
STARTS = frozenset({"run", "call", "check_call", "check_output"})


def endless(tree: ast.Module) -> Iterator[str]:
    """The calls that wait for a process as long as it takes: line and call."""
    started = {name for node in ast.walk(tree) for name in _bound_to_a_process(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        called, of = node.func.attr, ast.unparse(node.func.value)
        waits = (
            (of == "subprocess" and called in STARTS)
            or called == "communicate"
            or (called == "wait" and of in started and not node.args)
        )
        if waits and not any(keyword.arg in ("timeout", None) for keyword in node.keywords):
            yield f"{node.lineno}: {of}.{called}"


def _bound_to_a_process(node: ast.AST) -> Iterator[str]:
    """The names that a statement gives to a process, alone or one of several."""
    if isinstance(node, ast.Assign) and "subprocess.Popen(" in ast.unparse(node.value):
        yield from (ast.unparse(target) for target in node.targets)
    elif isinstance(node, (ast.For, ast.comprehension)):
        yield ast.unparse(node.target)  # a list of processes, or of anything else that waits
    elif isinstance(node, ast.withitem) and "subprocess.Popen(" in ast.unparse(node.context_expr):
        yield from (ast.unparse(name) for name in [node.optional_vars] if name is not None)


def test_every_call_has_an_end() -> None:
    texts = {path.relative_to(ROOT): path.read_text(encoding="utf-8") for path in FILES}
    starting = {path: text for path, text in texts.items() if "subprocess" in text}
    assert len(starting) > 50
    assert [f"{path}:{call}" for path, text in starting.items() for call in endless(ast.parse(text))] == []


@pytest.mark.parametrize(
    ("code", "calls"),
    [
        ("subprocess.run(command)", ["1: subprocess.run"]),
        ("subprocess.run(\n    command,\n    check=True,\n)", ["1: subprocess.run"]),
        ("subprocess.run(command, timeout=5)", []),
        ("subprocess.check_output(command, **options)", []),
        ("process = subprocess.Popen(command)\nprocess.wait()", ["2: process.wait"]),
        ("process = subprocess.Popen(command)\nprocess.wait(5)", []),
        ("for process in processes:\n    process.communicate()", ["2: process.communicate"]),
        ("workers = [subprocess.Popen(c) for c in commands]\nfor each in workers:\n    each.wait()", ["3: each.wait"]),
        ("store.wait()", []),
    ],
)
def test_what_is_found(code: str, calls: list[str]) -> None:
    assert list(endless(ast.parse(code))) == calls
