"""Models whose weights are put into half precision and then trained."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Final

from nantrap.doctor.configuration.precision import precision
from nantrap.doctor.configuration.python_file import OPTIMIZERS
from nantrap.doctor.source.expressions import dotted, name_of
from nantrap.doctor.source.module import Function, Module

_ANY: Final = re.compile(r"half\(|float16|fp16|bf16")
_EXACT: Final = (
    "FP16_Optimizer",
    "master_params",
    "prep_param_lists",
    "deepspeed",
    "BF16_Optimizer",
    "AnyPrecision",
    "kahan",
    "stochastic_round",
    "MixedPrecisionPlugin",
    "fp32_master",
    "master_weights",
)
_ADAPTERS: Final = (
    "get_peft_model",
    "LoraConfig",
    "peft_config",
    "PeftModel",
    "load_in_4bit",
    "load_in_8bit",
    "BitsAndBytesConfig",
)


@dataclass(frozen=True, slots=True)
class Halved:
    """A model with half-precision weights, and the call that trains it."""

    name: str
    dtype: str
    line: int
    text: str
    trained_by: ast.Call
    function: Function


def halved_models(module: Module) -> list[Halved]:
    """Models of a file that are put into float16 or bfloat16 and passed to an optimizer or a Trainer."""
    if "halved" not in module.kept:
        module.kept["halved"] = _find(module)
    found: list[Halved] = module.kept["halved"]
    return found


def _find(module: Module) -> list[Halved]:
    """The models of a file that are converted to half precision and then trained."""
    if module.is_test or not _ANY.search(module.text) or any(word in module.text for word in (*_EXACT, *_ADAPTERS)):
        return []
    trained = _trained(module)
    found = []
    for name, (call, function) in trained.items():
        for chain, line in _conversions(module, name):
            dtype = _dtype(module, chain, function)
            if dtype is not None:
                found.append(Halved(name, dtype, line, ast.unparse(chain)[:80], call, function))
                break
    return found


def _trained(module: Module) -> dict[str, tuple[ast.Call, Function]]:
    """The models whose parameters an optimizer gets, or that a Trainer gets."""
    found: dict[str, tuple[ast.Call, Function]] = {}
    for leaf, sites in module.calls.items():
        if leaf in OPTIMIZERS:
            for call, place in sites:
                if place.silent or (not call.args and not call.keywords):
                    continue
                first = call.args[0] if call.args else call.keywords[0].value
                given = first
                name = dotted(first)
                if name:
                    given = place.function.latest(name, call.lineno) or first
                for each in ast.walk(given):
                    if (
                        isinstance(each, ast.Attribute)
                        and each.attr in ("parameters", "named_parameters")
                        and dotted(each.value)
                    ):
                        found.setdefault(dotted(each.value), (call, place.function))
        elif leaf.endswith("Trainer") and leaf[:1].isupper():
            for call, place in sites:
                model = next((k.value for k in call.keywords if k.arg == "model"), call.args[0] if call.args else None)
                if model is not None and dotted(model) and not place.silent:
                    found.setdefault(dotted(model), (call, place.function))
    return found


def _conversions(module: Module, name: str) -> list[tuple[ast.expr, int]]:
    """The expressions that decide the precision of a model, the last one first."""
    found: list[tuple[ast.expr, int]] = []
    for function in module.functions:
        for line, value in function.assigned.get(name, ()):
            if not function.silent:
                found.append((value, line))
    for leaf in ("half", "to", "bfloat16", "float"):
        for call, place in module.calls.get(leaf, ()):
            statement = place.statement
            if not isinstance(statement, ast.Expr) or place.conditional or place.silent:
                continue
            root: ast.AST = statement.value
            while isinstance(root, ast.Call) and isinstance(root.func, ast.Attribute):
                root = root.func.value
            if dotted(root) == name:
                found.append((statement.value, call.lineno))
    return sorted(found, key=lambda each: each[1], reverse=True)


def _dtype(module: Module, node: ast.expr, function: Function) -> str | None:
    """`float16` or `bfloat16` if an expression makes a model of that precision."""
    while isinstance(node, ast.Call):
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        name = name_of(node.func)
        if name == "half":
            return "float16"
        if name == "bfloat16":
            return "bfloat16"
        if name == "float":
            return "float32"
        given = [keywords[key] for key in ("dtype", "torch_dtype") if key in keywords]
        if name == "to":
            given += list(node.args)
        if name in ("to", "from_pretrained", "from_config"):
            for each in given:
                found = precision(module.value(each, function))
                if found is not None:
                    return found.dtype if found.dtype != "float32" else None
        if not isinstance(node.func, ast.Attribute):
            return None
        node = node.func.value
    return None
