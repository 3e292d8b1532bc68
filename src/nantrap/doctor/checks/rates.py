"""Checks of learning rate and warm-up, in settings and in schedules (NT808-NT810, NT813, NT814)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from nantrap.doctor.checks.registry import Sighting, configuration_check, source_check
from nantrap.doctor.configuration.names import plain
from nantrap.doctor.configuration.precision import has_adapters
from nantrap.doctor.configuration.python_file import OPTIMIZERS
from nantrap.doctor.configuration.setting import Setting, SettingSource, is_adam, number, shared
from nantrap.doctor.repository import Repository, resolved_value
from nantrap.doctor.source.expressions import calls_in, dotted, keyword_of, name_of, receiver_of
from nantrap.doctor.source.module import Function, Module

_HIGH: Final = 1e-2
_NEVER: Final = 0.1
"""No network as a whole trains with Adam at this rate or above, unless a schedule multiplies it."""
_TRANSFORMER: Final = re.compile(
    r"^(block_size|n_head|num_attention_heads|(pretrained_)?model_name_or_path|max_seq_length)$"
)
_LAYERS: Final = frozenset({"Sequential", "Linear", "Conv1d", "Conv2d", "Conv3d", "LSTM", "GRU", "Embedding"})
_FACTOR: Final = re.compile(r"noam|inv(erse)?_?sq|rsqrt")
_SCHEDULES: Final = re.compile(r"LambdaLR|Sched|Noam|Warmup")
_READS_DATA: Final = re.compile(r"(?i)loader|dataset|(torch|np)\.load|read_|open\(|gym|\benv\b|batches")
_SHALLOW: Final = {
    "torch_geometric": "graph networks",
    "dgl": "graph networks",
    "ogb": "graph networks",
    "gym": "small policies",
    "gymnasium": "small policies",
}
"""Libraries whose networks are so small that Adam trains them well at 0.01."""
_LONG: Final = 10_000
_SHORT_WARMUP: Final = 100
_SMALL_RATIO: Final = 0.005
_MIN_LR: Final = re.compile(r"^_?(min_lr|lr_min|eta_min|min_learning_rate|minimum_lr|end_lr|final_lr)$")
_BASE_LR: Final = re.compile(r"(^|_)(lr|learning_rate|base_lr|max_lr|peak_lr|init_lr|initial_lr)$")
_A_RATIO: Final = 1e-2
"""A smallest learning rate of this size is a share of the peak already."""


@source_check("min_lr_as_factor", "medium", "divide by the initial learning rate: min_lr / lr")
def min_lr_as_factor(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A LambdaLR function returns a smallest learning rate where a factor is expected."""
    for call, place in module.sites("LambdaLR"):
        given = keyword_of(call, "lr_lambda") or next(iter(call.args[1:2]), None)
        for function, body in _functions(given, place.function, call.lineno):
            floor, least = _absolute_floor(body, function, repository)
            if floor is not None:
                words = f"LambdaLR multiplies by what the function returns, and {least} is a learning rate"
                yield Sighting.of(floor, f"{words}: the smallest one is the product of both")
                break


@configuration_check("min_lr_above_lr", "medium", "")
def min_lr_above_lr(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The smallest learning rate is larger than the learning rate itself."""
    for each in source.all("min_lr"):
        least = number(each.value)
        rates = [other for other in source.all("lr") if number(other.value) is not None]
        if least is None or least <= 0 or not rates:
            continue
        nearest = max(shared(each.names, other.names) for other in rates)
        near = [other for other in rates if shared(each.names, other.names) == nearest]
        beside = max(near, key=lambda other: number(other.value) or 0.0)  # warm-up begins at the others
        peak = number(beside.value) or 0.0
        if peak <= 0 or least < peak or (least >= _A_RATIO and least >= 10 * peak):
            continue  # the last is a share of the learning rate, not a learning rate
        if least == peak:
            fix = f"set {each.path[-1]} below {beside.path[-1]}, e.g. {peak / 10:g}"
            words = f"the same as {beside.name}: the learning rate never falls"
            yield Sighting.at(each, f"{each.name} is {least:g}, {words}", risk="low", fix=fix)
        else:
            fix = f"swap {each.name} and {beside.name}"
            yield Sighting.at(each, f"{each.name} is {least:g}, above {beside.name} = {peak:g}", fix=fix)


@configuration_check("lr_high", "high", "begin with 1e-4")
def lr_high(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The learning rate is far above what Adam can use.

    High where nothing of the network was read, or where what was read shows that it is deep (see `_is_too_high`).
    Small networks train well at 0.01, so elsewhere it is a warning; and where another branch gives the same setting to
    an optimizer that is no Adam, because the value may be meant for that one.
    """
    for each in source.all("lr"):
        rate = number(each.value)
        if rate is None or not _HIGH <= rate < float("inf") or not uses_adam(source, each) or _is_factor(source):
            continue
        modules = [module for module in repository.modules if module.file == source.file]
        if any(module.is_demonstration or (rate == 1 and _schedules(module)) for module in modules):
            continue
        optimizer = source.near(each, "optimizer")
        name = optimizer.value if optimizer is not None else "AdamW, the default"
        usual = _usual_for(source, repository)
        certain = not usual and _is_too_high(source, rate, repository)
        doubt = _rival(source, each)
        doubt = doubt or ("" if certain else f"usual for {usual or 'a small network'}, too high for a deep one")
        doubt = doubt or _of_few_parameters(modules, source, each) or _beside_another(source, each)
        of_a_script = optimizer is None and any("ArgumentParser" in module.calls for module in modules)
        if of_a_script and not any(word in module.text for module in modules for word in ("torch", "Trainer")):
            doubt = doubt or "the file uses no optimizer of PyTorch"
        doubt = doubt or ("it trains on random numbers" if any(map(_on_random_numbers, modules)) else "")
        yield Sighting.at(each, f"{each.name} is {rate:g} with {name}", doubt=doubt)


@configuration_check("warmup_too_short", "low", "")
def warmup_too_short(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """A long Adam run has almost no warm-up."""
    steps = number(source.value("total_steps"))
    if steps is None or steps < _LONG:
        return
    count, ratio = source.first("warmup_steps"), source.first("warmup_ratio")
    share = number(ratio.value) if ratio is not None else None
    if ratio is not None and (share is None or share >= _SMALL_RATIO):
        return
    if source.first("warmup_epochs") is not None and number(source.value("warmup_epochs")) != 0:
        return
    chosen = count if count is not None else ratio
    if chosen is None or not uses_adam(source, chosen):
        return
    by_share = (share or 0.0) * steps
    warmup = by_share if count is None else number(count.value)
    if count is not None and not warmup and by_share > 0:
        warmup = by_share
    if warmup is None or not 0 <= warmup < _SHORT_WARMUP or (count is not None and 0 < warmup < 1):
        return
    words = f"{chosen.name} is {chosen.value} in a run of {int(steps):,} steps with Adam"
    fix = f"warm up for 1 to 3 % of the steps: {int(steps * 0.01):,} to {int(steps * 0.03):,}"
    yield Sighting.at(chosen, words, fix=fix)


@configuration_check("warmup_exceeds_training", "medium", "")
def warmup_exceeds_training(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The warm-up is as long as the training, or longer."""
    for each in source.all("warmup_steps"):
        total = source.near(each, "total_steps")
        warmup, steps = number(each.value), number(total.value) if total is not None else None
        if total is None or warmup is None or steps is None or steps < 1 or warmup < 1 or warmup < steps:
            continue
        words = f"{each.name} is {warmup:g} and {total.name} is {steps:g}: the learning rate never reaches its peak"
        yield Sighting.at(each, words, fix=f"shorten the warm-up to about {max(1, int(steps * 0.03)):,} steps")


def uses_adam(source: SettingSource, setting: Setting | None) -> bool:
    """Whether the optimizer that belongs to a setting is known to be of the Adam family."""
    named = [found for name in reversed(setting.names) if (found := is_adam(name)) is not None] if setting else []
    if named:
        return named[0]  # optimizer.muon.lr
    optimizer = source.near(setting, "optimizer") if setting is not None else source.first("optimizer")
    if optimizer is not None:
        return is_adam(optimizer.value) is True
    return source.framework == "hf" and source.kind != "argparse"  # its default is AdamW


def _rival(source: SettingSource, rate: Setting) -> str:
    """Words for code that also makes another optimizer, not Adam, of this setting; empty if it does not."""
    same = [each for each in source.all("lr") if each.parent == rate.parent and each.value == rate.value]
    others = [each.value for each in source.all("optimizer") if each.parent == rate.parent]
    rivals = [str(each) for each in others if is_adam(each) is False]
    if source.kind != "optimizer" or len(same) < 2 or not rivals:
        return ""
    return f"too high if it is chosen; {rivals[0]} is given the same setting"


def _on_random_numbers(module: Module) -> bool:
    """Whether the inputs of a file's training loop are made by `torch.rand` and nothing in it reads data."""
    if _READS_DATA.search(module.text):
        return False
    trained = {id(place.function) for _, place in module.calls.get("backward", ())}
    sites = module.sites("rand", "randn", "randint")
    return any(place.loops and id(place.function) in trained for _, place in sites)


def _beside_another(source: SettingSource, rate: Setting) -> str:
    """Words for a lower learning rate under a shorter name, as `lr` next to `lr_max`; empty if there is none."""
    others = [each for each in source.all("lr") if each.parent == rate.parent and each.names[-1] != rate.names[-1]]
    lower = any((number(each.value) or _HIGH) < _HIGH and len(each.names[-1]) < len(rate.names[-1]) for each in others)
    return "a lower rate stands beside it" if lower else ""


def _of_few_parameters(modules: list[Module], source: SettingSource, rate: Setting) -> str:
    """Words for an optimizer that gets tensors or a single layer, as `Adam([w], lr=1)`; empty if it does not."""
    calls = [each for module in modules for name in OPTIMIZERS for each in module.calls.get(name, ())]
    for call, place in calls if source.kind == "optimizer" else ():
        if not call.args or not call.lineno <= rate.line <= (call.end_lineno or call.lineno):
            continue
        first = call.args[0]
        if (model := receiver_of(first, "parameters")) is not None:
            made = place.function.given(model)
            if isinstance(made, ast.Call) and name_of(made.func) in ("Linear", "Embedding"):
                return "it trains a single layer"
        found = place.function.given(first) if dotted(first) else first
        if not isinstance(found, (ast.List, ast.Tuple)) or "parameters" in ast.unparse(found):
            continue
        if not any(isinstance(each, ast.Dict) for each in ast.walk(found)):
            return "it trains tensors, and no network"
    return ""


def _usual_for(source: SettingSource, repository: Repository) -> str:
    """What a high learning rate of Adam is usual for, if the source or its project is such a thing; else nothing."""
    if has_adapters(source):
        return "adapters and prompts"
    if source.kind == "optimizer" and len({each.parent for each in source.all("optimizer")}) > 1:
        return "a part of the model"
    own = [module for module in repository.modules if module.file == source.file]
    modules = [module for module in repository.modules if "torch" in module.text]
    if any("onecycle" in str(each.value).lower().replace("_", "") for each in source.settings) or any(
        "OneCycleLR" in module.calls for module in own
    ):
        return "the peak of a one-cycle schedule"
    for library, what in _SHALLOW.items():
        users = [m for m in modules if any(target.split(".")[0] == library for target in m.imports.values())]
        if set(map(id, users)) & set(map(id, own)) or 2 * len(users) > len(modules):
            return what
    return ""


def _is_too_high(source: SettingSource, rate: float, repository: Repository) -> bool:
    """Whether what was read shows that a learning rate is too high for its network.

    It does so if a Trainer of transformers gets it, if the settings beside it are those of a transformer, if it is 0.1
    or more and nothing schedules it, or if no network was read at all: then only the rate itself is known.
    """
    own = [module.settings for module in repository.modules if module.file == source.file]
    beside = {each.names[-1] for each in source.settings}.union(*(each.constants | each.defaults for each in own))
    if source.framework == "hf" or any(map(_TRANSFORMER.match, beside)):
        return True
    if not any(map(_makes_network, repository.modules)):
        return True
    scheduled = any("sched" in name for each in source.settings for name in each.names)
    return rate >= _NEVER and not scheduled and not any(map(_schedules, repository.modules))


def _makes_network(module: Module) -> bool:
    """Whether a file has a network, or makes one of layers."""
    bases = [name_of(base) for each in module.classes for base in each.bases]
    return any(name.endswith("Module") for name in bases) or not _LAYERS.isdisjoint(module.calls)


def _schedules(module: Module) -> bool:
    """Whether a file makes a schedule: a learning rate of exactly 1 is then what it multiplies."""
    return any(_SCHEDULES.search(name) for name in module.calls)


def _is_factor(source: SettingSource) -> bool:
    """Whether a schedule multiplies the learning rate by d^-0.5 and the like, so that 1.0 is an ordinary value."""
    return any(isinstance(each.value, str) and _FACTOR.search(each.value.lower()) for each in source.settings)


def _functions(node: ast.expr | None, function: Function, line: int) -> Iterator[tuple[Function, list[ast.expr]]]:
    """The functions that schedules are made of, and the expressions in each."""
    if isinstance(node, (ast.List, ast.Tuple)):
        for item in node.elts:
            yield from _functions(item, function, line)
    elif isinstance(node, ast.Call):  # a factory, or functools.partial
        inner = node.args[0] if name_of(node.func) == "partial" and node.args else node.func
        yield from _functions(inner, function, line)
    elif isinstance(made := function.given(node, line) or node, ast.Lambda):
        yield function, [made.body]
    else:
        for found in function.module.by_name.get(name_of(node), ()):
            yield found, [each for each in ast.walk(found.node) if isinstance(each, (ast.Call, ast.BinOp))]


def _absolute_floor(
    returned: list[ast.expr], function: Function, repository: Repository
) -> tuple[ast.Call | None, str]:
    """The `max(..., min_lr)` of a factor that a scheduler multiplies by, and the learning rate in it by its name."""
    inside = [each for value in returned for each in ast.walk(value)]
    divisors = [each.right for each in inside if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Div)]
    if any(_BASE_LR.search(plain(name_of(each))) for each in divisors):
        return None, ""
    for call in (call for value in returned for call in calls_in(value, "max", "maximum")):
        for argument in call.args:
            if _MIN_LR.match(plain(name_of(argument))) and _is_rate(argument, function, repository):
                return call, ast.unparse(argument)
    return None, ""


def _is_rate(node: ast.expr, function: Function, repository: Repository) -> bool:
    """Whether a smallest learning rate is absolute: not divided by the base learning rate, and not a factor."""
    at: Function | None = function
    while at is not None:
        given = at.given(node)
        if given is not None and any(isinstance(each, ast.Div) for each in ast.walk(given)):
            return False
        at = at.parent
    value = number(resolved_value(function, node, repository))
    return value is None or 0 < value < _A_RATIO
