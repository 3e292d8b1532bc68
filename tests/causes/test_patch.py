"""The diff of the user's own line: exact, or none at all."""

from __future__ import annotations

import re

import pytest

from nantrap.causes.patch import diff_for
from nantrap.incident import Source

FORMS = {
    **{name: f"nantrap.ops.safe_{name}(x)" for name in ("sqrt", "log", "acos")},
    "arcsin": "nantrap.ops.safe_asin(x)",
    "std": "nantrap.ops.safe_std(x, ...)",
    "var": "nantrap.ops.safe_var(x, ...)",
    "pow": "nantrap.ops.safe_pow(a, b)",
    "softmax": "nantrap.ops.masked_softmax(x, dim=dim)",
    "log_softmax": "nantrap.ops.masked_log_softmax(x, dim=dim)",
    "div": "nantrap.ops.safe_divide(a, b)",
}


def diff(line: str, expression: str, **changes: object) -> str:
    called = re.findall(r"(\w+)\(", expression.replace(".sum(", "."))
    function = next((name for name in reversed(called) if name in FORMS), "div")
    form = FORMS[function]
    column = line.index(expression) if expression in line else 0
    given = {"column": column, "end_column": column + len(expression), **changes}
    source = Source(file="train.py", line=3, function="loss", text=line, **given)  # type: ignore[arg-type]
    return diff_for([(source, function, form)])


@pytest.mark.parametrize(
    ("expression", "safe"),
    [
        ("x.sqrt()", "nantrap.ops.safe_sqrt(x)"),
        ("torch.sqrt(x + y)", "nantrap.ops.safe_sqrt(x + y)"),
        ("(a - b).square().sum(-1).sqrt()", "nantrap.ops.safe_sqrt((a - b).square().sum(-1))"),
        ("torch.log(p)", "nantrap.ops.safe_log(p)"),
        ("p.log()", "nantrap.ops.safe_log(p)"),
        ("torch.acos(c)", "nantrap.ops.safe_acos(c)"),
        ("torch.arcsin(c)", "nantrap.ops.safe_asin(c)"),
        ("x.std(dim=0, keepdim=True)", "nantrap.ops.safe_std(x, dim=0, keepdim=True)"),
        ("x.var(0)", "nantrap.ops.safe_var(x, 0)"),
        ("torch.pow(x, 0.5)", "nantrap.ops.safe_pow(x, 0.5)"),
        ("scores.softmax(dim=-1)", "nantrap.ops.masked_softmax(scores, dim=-1)"),
        ("(q @ k).softmax(-1)", "nantrap.ops.masked_softmax(q @ k, dim=-1)"),
        ("torch.softmax(scores, 1)", "nantrap.ops.masked_softmax(scores, dim=1)"),
        ("F.log_softmax(scores, dim=-1)", "nantrap.ops.masked_log_softmax(scores, dim=-1)"),
        ("y.softmax(x)", "nantrap.ops.masked_softmax(y, dim=x)"),
        ("x / x.sum()", "nantrap.ops.safe_divide(x, x.sum())"),
    ],
)
def test_guilty_expression_is_replaced(expression: str, safe: str) -> None:
    line = f"    y = 2 * ({expression}) + 1  # why"
    assert diff(line, expression) == f"-{line}\n+{line.replace(expression, safe)}"


@pytest.mark.parametrize(
    "expression",
    ["x ** 0.5", "self.softmax(x)", "f(x)", "x.softmax(-1, dtype=d)", "F.softmax(x)", "sqrt(x)", "x.sqrt(", "x", ""],
)
def test_nothing_is_guessed(expression: str) -> None:
    assert diff(f"y = {expression}", expression) == ""


def test_unsure_places_give_none() -> None:
    assert diff("y = x.sqrt()", "x.sqrt()", column=None) == ""
    assert diff("y = x.sqrt()", "x.sqrt()", end_column=None) == ""
    assert diff("σ = x.sqrt()", "x.sqrt()") == "", "columns count bytes, and σ has two"


@pytest.mark.parametrize("expression", ["np.sqrt(x)", "math.log(x)", "torch.linalg.sqrt(x)"])
def test_functions_of_other_modules(expression: str) -> None:
    assert diff(f"y = {expression}", expression) == ""


@pytest.mark.parametrize("expression", ["x.std(0, True)", "x.std(False)", "x.std(0, unbiased=False)"])
def test_arguments_that_the_safe_form_does_not_take(expression: str) -> None:
    assert diff(f"y = {expression}", expression) == ""


def test_all_calls_of_a_line_that_were_replaced_are_shown() -> None:
    line = "y = x.sqrt() + z.sqrt()"
    places = [Source(file="t.py", line=3, text=line, column=c, end_column=c + 8) for c in (4, 15)]
    both = "nantrap.ops.safe_sqrt(x) + nantrap.ops.safe_sqrt(z)"
    assert diff_for((place, "sqrt", "nantrap.ops.safe_sqrt(x)") for place in places) == f"-{line}\n+y = {both}"


def test_a_sum_instead_of_a_call_is_enclosed() -> None:
    place = Source(file="t.py", line=3, text="y = a / x.std(0)", column=8, end_column=16)
    after = "y = a / (nantrap.ops.safe_std(x, 0) + 1e-05)"
    assert diff_for([(place, "std", "nantrap.ops.safe_std(x, ...) + 1e-05")]).endswith(after)


def test_one_inside_the_other_is_not_written() -> None:
    line = "y = (1 + x.sqrt()).sqrt()"
    places = [Source(file="t.py", line=3, text=line, column=a, end_column=b) for a, b in ((4, 25), (9, 17))]
    assert diff_for((place, "sqrt", "nantrap.ops.safe_sqrt(x)") for place in places) == ""
