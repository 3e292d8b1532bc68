"""Checks of source code: the deviation of small groups, repeated indices of einsum (NT863, NT866)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from nantrap.doctor.checks.derivatives import in_model
from nantrap.doctor.checks.registry import Sighting, source_check
from nantrap.doctor.repository import Repository
from nantrap.doctor.source.expressions import dotted, name_of, names_in, operation
from nantrap.doctor.source.module import Function, Module, Site

_ONE_PER_SAMPLE: Final = re.compile(
    r"reward|adv|return|loss|score|group|logp|gae|ratio|distance|sims?$|batch", re.IGNORECASE
)
_GROUPED: Final = re.compile(r"grouped|^group$|_group$|^group_(?!norm)|num_generations|group_size")


@source_check("std_of_one")
def std_of_one(module: Module, repository: Repository) -> Iterator[Sighting]:
    """An unbiased standard deviation over a batch or group that may have one element."""
    for call, place in module.sites("std", "var", "std_mean", "var_mean"):
        found = operation(module, call)
        if (
            found is None
            or found.operand is None
            or (not in_model(module, place.function) and not _normalises(place.function))
        ):
            continue
        if (
            _biased(module, found.arguments, found.keywords)
            or _only_logged(call, place)
            or _a_distribution(found.operand)
        ):
            continue
        if _size_tested(call, place):
            continue
        dim = found.keywords.get("dim", found.keywords.get("axis", found.arguments[0] if found.arguments else None))
        name = name_of(found.operand) or ast.unparse(found.operand)
        value = module.value(dim, place.function) if dim is not None else None
        if isinstance(value, list):
            value = value[0] if len(value) == 1 else "several"
        if dim is None:
            risk = "medium" if _ONE_PER_SAMPLE.search(name) else "low"
        elif (value == 0 and not isinstance(value, bool)) or _of_groups(found.operand, place.function, call.lineno):
            risk = "medium"
        else:
            continue
        if risk == "low" and not _divides(place):
            continue
        yield Sighting(
            "medium" if risk == "medium" else "low",
            call.lineno,
            ast.unparse(call)[:80],
            f"{name}.{found.name} divides by n - 1: it is NaN for one element",
            "correction=0",
        )


@source_check("einsum_repeated_index")
def einsum_repeated_index(module: Module, repository: Repository) -> Iterator[Sighting]:
    """An index appears twice in one operand of an einsum: it takes the diagonal."""
    for call, place in module.sites("einsum", "contract"):
        name = module.resolve(call.func)
        if name.split(".")[0] in ("numpy", "np", "jax", "jnp", "tensorflow", "tf"):
            continue
        words = name.startswith("einops")
        texts = [call.args[index] for index in ((-1, 0) if words else (0,)) if call.args]
        equation = next((value for node in texts if isinstance(value := module.value(node, place.function), str)), None)
        if equation is None:
            continue
        operands = equation.split("->")[0].split(",")
        if len(operands) < 2:
            continue
        for operand in operands:
            letters = operand.split() if words else [c for c in operand if c.isalpha()]
            twice = next(
                (letter for letter in letters if letters.count(letter) > 1 and letter not in ("...", "1", "_")), None
            )
            if twice is not None:
                yield Sighting(
                    "high",
                    call.lineno,
                    equation,
                    f'"{equation}": the index {twice} appears twice in "{operand.strip()}", which takes the diagonal',
                    "give the rows and the columns two letters",
                )
                break


def _biased(module: Module, arguments: list[ast.expr], keywords: dict[str, ast.expr]) -> bool:
    """Whether a variance divides by n, so that one value gives 0 and not NaN."""
    unbiased, correction = keywords.get("unbiased"), keywords.get("correction")
    if unbiased is not None:
        return module.value(unbiased) is not True
    if correction is not None:
        return bool(module.value(correction) != 1)
    if any(isinstance(each, ast.Constant) and each.value is False for each in arguments[:2]):
        return True
    return "ddof" in keywords


def _only_logged(call: ast.Call, place: Site) -> bool:
    """`x.std().item()` and what is in a print or a log."""
    for each in ast.walk(place.statement):
        outer = each.func if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute) else None
        if outer is not None and outer.value is call and outer.attr in ("item", "detach", "cpu", "tolist"):
            return True
        if isinstance(each, ast.FormattedValue) and any(inner is call for inner in ast.walk(each)):
            return True
        if (
            isinstance(each, ast.Call)
            and name_of(each.func)
            in (
                "print",
                "log",
                "info",
                "debug",
                "add_scalar",
                "log_dict",
            )
            and any(
                inner is call
                for argument in (*each.args, *(k.value for k in each.keywords))
                for inner in ast.walk(argument)
            )
        ):
            return True
    return False


def _a_distribution(node: ast.expr) -> bool:
    return name_of(node).lower() in ("np", "numpy", "statistics", "dist", "posterior", "df")


def _normalises(function: Function) -> bool:
    """Functions that standardise rewards or advantages belong to the loss though their name does not say so."""
    name = function.name.lower()
    return any(
        word in name for word in ("advantage", "reward", "normalize", "normalise", "standardi", "whiten", "train")
    )


def _of_groups(node: ast.expr, function: Function, line: int) -> bool:
    """Whether a tensor holds groups of samples: rewards of several answers to one question."""
    names = names_in(node)
    value = function.latest(dotted(node), line) if dotted(node) else None
    if value is not None:
        names |= names_in(value)
    return any(_GROUPED.search(name) for name in names)


def _size_tested(call: ast.Call, place: Site) -> bool:
    """`x.std() if x.numel() > 1 else 0`."""
    for each in ast.walk(place.statement):
        if isinstance(each, ast.IfExp) and any(inner is call for inner in ast.walk(each)):
            text = ast.unparse(each.test)
            return any(word in text for word in ("numel", "len(", "shape", "size"))
    return False


def _divides(place: Site) -> bool:
    return any(isinstance(each, ast.BinOp) and isinstance(each.op, ast.Div) for each in ast.walk(place.statement))
