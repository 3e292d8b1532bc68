"""Checks of weights that are in half precision themselves, in settings and in code (NT815-NT817, NT873).

Constants of the optimizer that such weights cannot hold, and training in float16. A source of settings and the code
that makes an optimizer are read into the same shape, `_HalfTraining`, so that each rule is written once.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from nantrap.doctor.checks.rates import uses_adam
from nantrap.doctor.checks.registry import Sighting, configuration_check, source_check
from nantrap.doctor.configuration.precision import has_adapters, keeps_float32, precision, weights
from nantrap.doctor.configuration.python_file import OPTIMIZERS
from nantrap.doctor.configuration.setting import Setting, SettingSource, is_adam, number, switch
from nantrap.doctor.report import Risk
from nantrap.doctor.repository import Repository, resolved_value
from nantrap.doctor.source.expressions import calls_in, dotted, keyword_of, name_of, receiver_of, shown
from nantrap.doctor.source.module import Function, Module

HALF_EPS: Final = 6e-8
"""The smallest positive float16 is 5.96e-8; what is below is zero."""
_SLOW_BETA: Final = 0.998
"""Above it, the decay of the second moment is lost in bfloat16's 8 bits."""
SMALL_RATE: Final = 1e-4
_TINY_RATE: Final = 1e-5
_ANY: Final = re.compile(r"half\(|float16|fp16|bf16")
_EXACT: Final = (
    "FP16_Optimizer", "master_params", "prep_param_lists", "deepspeed", "BF16_Optimizer", "AnyPrecision", "kahan",
    "stochastic_round", "MixedPrecisionPlugin", "fp32_master", "master_weights", "FullyShardedDataParallelPlugin",
)  # fmt: skip
"""Words of code that keeps float32 weights beside, or makes the weights float32 again, as Accelerate's FSDP does."""
_ADAPTERS: Final = (
    "get_peft_model", "LoraConfig", "peft_config", "PeftModel", "load_in_4bit", "load_in_8bit", "BitsAndBytesConfig",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Halved:
    """A model with half-precision weights, and the call that trains it."""

    name: str
    dtype: str
    line: int
    text: str
    trained_by: ast.Call
    function: Function


@dataclass(frozen=True, slots=True)
class _Constant:
    """A constant of an optimizer: what is said of it, its number, and where it is set, as it is written there."""

    words: str
    number: float
    line: int
    written: Any
    file: str | None = None


@dataclass(frozen=True, slots=True)
class _HalfTraining:
    """Training with half-precision weights: their dtype, why they have it, and the constants of Adam."""

    dtype: str
    words: str
    eps: list[_Constant] = field(default_factory=list)
    beta2: list[_Constant] = field(default_factory=list)
    rate: list[_Constant] = field(default_factory=list)


_Rule = Callable[[_HalfTraining], Iterator[Sighting]]


def _check_of_both(slug: str, risk: Risk, fix: str) -> Callable[[_Rule], _Rule]:
    """Register a rule for settings and for code."""

    def register(rule: _Rule) -> _Rule:
        """Two checks with the same rule: one reads settings, one reads code."""

        @configuration_check(slug, risk, fix)
        def of_settings(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
            for training in _in_settings(source, repository):
                yield from rule(training)

        @source_check(slug, risk, fix)
        def of_code(module: Module, repository: Repository) -> Iterator[Sighting]:
            for training in _in_code(module, repository):
                yield from rule(training)

        return rule

    return register


@_check_of_both("eps_below_dtype", "high", "keep the weights in float32 and use mixed precision")
def eps_below_dtype(training: _HalfTraining) -> Iterator[Sighting]:
    """The optimizer's eps is zero in the precision of the weights."""
    for eps in training.eps if training.dtype == "float16" else ():
        if 0 <= eps.number < HALF_EPS:
            words = f"{eps.words}, which is 0 in float16, and {training.words}"
            yield Sighting(eps.line, eps.written, words, file=eps.file)


@_check_of_both("beta_rounds_to_one", "medium", "keep optimizer state in float32, or use beta2 = 0.95")
def beta_rounds_to_one(training: _HalfTraining) -> Iterator[Sighting]:
    """Adam's beta2 rounds to one in the precision of its state."""
    for beta in training.beta2 if training.dtype == "bfloat16" else ():
        if _SLOW_BETA < beta.number < 1:
            words = f"{beta.words} and {training.words}: the second moment never decays"
            yield Sighting(beta.line, beta.written, words, file=beta.file)


@_check_of_both(
    "bf16_weights_frozen", "medium", "keep float32 weights with bf16 mixed precision, or use stochastic rounding"
)
def bf16_weights_frozen(training: _HalfTraining) -> Iterator[Sighting]:
    """The updates are too small to change bfloat16 weights."""
    for rate in training.rate if training.dtype == "bfloat16" else ():
        if 0 < rate.number <= SMALL_RATE:
            words = f"{rate.words} and {training.words}: many updates are rounded away"
            risk: Risk = "high" if rate.number <= _TINY_RATE else "medium"
            yield Sighting(rate.line, rate.written, words, risk, file=rate.file)


@source_check("half_weights_trained", "high", "keep float32 weights and use mixed precision")
def half_weights_trained(module: Module, repository: Repository) -> Iterator[Sighting]:
    """The weights themselves are float16, and they are trained."""
    for found in halved_models(module):
        if found.dtype == "float16":
            words = f"{found.name} has float16 weights and is trained (line {found.trained_by.lineno})"
            yield Sighting(found.line, found.text, words)


def _in_settings(source: SettingSource, repository: Repository) -> Iterator[_HalfTraining]:
    """The training that a source of settings describes, if its weights are in half precision."""
    asked = weights(source)
    if asked is None or _keeps_exact(source, repository):
        return
    words = f"the weights are {asked.dtype} ({asked.setting.name}, line {asked.setting.line})"
    training = _HalfTraining(asked.dtype, words)

    def add(to: list[_Constant], each: Setting, value: float | None, words: str) -> None:
        if value is not None:
            to.append(_Constant(words.format(value), value, each.line, each.value, each.file))

    for each in source.all("eps"):
        add(training.eps, each, number(each.value), f"{each.name} is {{:g}}")
    for each in (*source.all("betas"), *source.all("beta2")):
        add(training.beta2, each, _second_beta(each.value), f"beta2 is {{:g}} ({each.name})")
    rate = source.first("lr")
    if rate is not None and uses_adam(source, rate):
        add(training.rate, rate, number(rate.value), f"{rate.name} is {{:g}}")
    yield training


def _in_code(module: Module, repository: Repository) -> Iterator[_HalfTraining]:
    """What trains each half-precision model of a file, unless DeepSpeed or adapters keep bfloat16 weights exact."""
    here = SettingSource(module.file, "call", (), "code")
    for found in halved_models(module):
        if found.dtype == "bfloat16":
            beside = [each for each in repository.by_role("trainer") if each.file == module.file]
            settings = [s for each in repository.partners(here, "launcher") for s in each.settings]
            if repository.partners(here, "deepspeed") or any(map(has_adapters, beside)):
                return
            if any("deepspeed" in str(each.value).lower() for each in settings):
                return
        call, function = found.trained_by, found.function
        training = _HalfTraining(found.dtype, f"the weights of {found.name} are {found.dtype} (line {found.line})")
        if name_of(call.func).endswith("Trainer"):
            training.rate.extend(_trainer_rate(module, repository))
        elif is_adam(name_of(call.func)):
            eps, betas = keyword_of(call, "eps"), keyword_of(call, "betas")
            rate = keyword_of(call, "lr") or (call.args[1] if len(call.args) > 1 else None)
            value = number(function.value(eps)) if eps is not None else 1e-8
            beta = _second_beta(function.value(betas)) if betas is not None else 0.999
            for to, name, given, of_it in ((training.eps, "eps", eps, value), (training.beta2, "beta2", betas, beta)):
                default = " (the default)" if given is None else ""
                if of_it is not None:
                    to.append(_Constant(f"{name} is {of_it:g}{default}", of_it, call.lineno, of_it))
            if rate is not None and (lr := number(resolved_value(function, rate, repository))) is not None:
                training.rate.append(_Constant(f"the learning rate is {lr:g}", lr, call.lineno, lr))
        yield training


def _trainer_rate(module: Module, repository: Repository) -> Iterator[_Constant]:
    """The learning rate that a Trainer of this file gets."""
    for source in repository.by_role("trainer"):
        if source.file == module.file and source.framework == "hf":
            rate, optimizer = source.first("lr"), source.first("optimizer")
            if rate is not None and (optimizer is None or is_adam(optimizer.value)):
                value = number(rate.value)
                if value is not None:
                    yield _Constant(f"the learning rate is {value:g}", value, rate.line, value)
                return


def _second_beta(value: Any) -> float | None:
    """beta2 of a list, a text like "(0.9, 0.999)", or the number itself."""
    if isinstance(value, str) and "," in value:
        value = re.findall(r"[\d.]+(?:e-?\d+)?", value)
    if isinstance(value, list):
        return number(value[1]) if len(value) == 2 else None
    return number(value)


def _keeps_exact(source: SettingSource, repository: Repository) -> bool:
    """Whether something keeps the weights exact after all: adapters, DeepSpeed, a master copy."""
    if has_adapters(source) or keeps_float32(source) or _uses_deepspeed(source):
        return True
    return any(map(_uses_deepspeed, repository.partners(source, "launcher"))) or bool(
        repository.partners(source, "deepspeed")
    )


def _uses_deepspeed(source: SettingSource) -> bool:
    """Whether a source names DeepSpeed."""
    return source.role == "deepspeed" or any(
        (each.key == "deepspeed" and each.value not in (None, "", False))
        or (each.key == "distributed_type" and "deepspeed" in str(each.value).lower())
        or (each.names[-1] == "use_deepspeed" and switch(each.value))
        or not {"deepspeed", "deepspeed_config"}.isdisjoint(each.parent)
        for each in source.settings
    )


def halved_models(module: Module) -> list[Halved]:
    """Models of a file that are put into float16 or bfloat16 and passed to an optimizer or a Trainer."""
    if "halved" not in module.kept:
        module.kept["halved"] = _find(module)
    found: list[Halved] = module.kept["halved"]
    return found


def _find(module: Module) -> list[Halved]:
    """The models of a file that are converted to half precision and then trained."""
    if not _ANY.search(module.text) or any(word in module.text for word in (*_EXACT, *_ADAPTERS)):
        return []
    found = []
    for name, (call, function) in _trained(module).items():
        for chain, line in _conversions(module, name):
            dtype = _dtype(chain, function)
            if dtype is not None:
                found.append(Halved(name, dtype, line, shown(chain, 80), call, function))
                break
    return found


def _trained(module: Module) -> dict[str, tuple[ast.Call, Function]]:
    """The models whose parameters an optimizer gets, or that a Trainer gets."""
    found: dict[str, tuple[ast.Call, Function]] = {}
    trainers = [leaf for leaf in module.calls if leaf.endswith("Trainer") and leaf[:1].isupper()]
    for call, place in module.sites(*(leaf for leaf in module.calls if leaf in OPTIMIZERS or leaf in trainers)):
        first = call.args[0] if call.args else None
        if name_of(call.func) in trainers:
            models = [keyword_of(call, "model") or first]
        else:
            first = first or (call.keywords[0].value if call.keywords else None)
            given = place.function.given(first, call.lineno) or first
            calls = calls_in(given, "parameters", "named_parameters") if given is not None else ()
            models = [receiver_of(each, "parameters", "named_parameters") for each in calls]
        for model in models:
            if model is not None and dotted(model):
                found.setdefault(dotted(model), (call, place.function))
    return found


def _conversions(module: Module, name: str) -> list[tuple[ast.expr, int]]:
    """The expressions that decide the precision of a model, the last one first."""
    given = [each.assigned.get(name, ()) for each in module.functions if not each.silent]
    found = [(value, line) for values in given for line, value in values]
    for call, place in module.sites("half", "to", "bfloat16", "float"):
        statement = place.statement
        if isinstance(statement, ast.Expr) and not place.conditional:
            root: ast.AST = statement.value
            while isinstance(root, ast.Call) and isinstance(root.func, ast.Attribute):
                root = root.func.value
            if dotted(root) == name:
                found.append((statement.value, call.lineno))
    return sorted(found, key=lambda each: each[1], reverse=True)


def _dtype(node: ast.expr, function: Function) -> str | None:
    """`float16` or `bfloat16` if an expression makes a model of that precision."""
    while isinstance(node, ast.Call):
        name = name_of(node.func)
        if name in ("half", "bfloat16", "float"):
            return {"half": "float16", "float": "float32"}.get(name, name)
        given = [keyword_of(node, "dtype"), keyword_of(node, "torch_dtype"), *(node.args if name == "to" else ())]
        for each in given if name in ("to", "from_pretrained", "from_config") else ():
            found = precision(function.value(each))
            if found is not None:
                return found.dtype if found.dtype != "float32" else None
        if not isinstance(node.func, ast.Attribute):
            return None
        node = node.func.value
    return None
