"""Checks of mixed precision, in settings and in code (NT801-NT807, NT857).

Which dtype, whether every part asks for the same, autocast and the gradient scaler.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from nantrap.doctor.checks.registry import Sighting, configuration_check, source_check
from nantrap.doctor.configuration.precision import computation, half_flags, precision, says_no
from nantrap.doctor.configuration.setting import UNKNOWN, Setting, SettingSource, SourceRole, number, switch
from nantrap.doctor.repository import Repository, possible_values
from nantrap.doctor.source.expressions import calls_in, dotted, is_loss, keyword_of, used_in
from nantrap.doctor.source.flow import LoopEvent, LoopFlow, all_flows, follows
from nantrap.doctor.source.module import CodePlace, Function, Module

_MANY: Final = 10
_SHORT: Final = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}
_ROLES: Final = {"trainer": "the trainer", "launcher": "the launcher", "deepspeed": "DeepSpeed", "code": "the code"}
_AUTOCAST: Final = frozenset(
    {
        "torch.autocast",
        "torch.amp.autocast",
        "torch.cuda.amp.autocast",
        "torch.amp.autocast_mode.autocast",
        "torch.cuda.amp.autocast_mode.autocast",
    }
)
_SCALER: Final = re.compile(
    r"GradScaler|NativeScaler|(loss|amp|grad)_?[sS]caler|[sS]caler\.(scale|step|unscale_)\(|[sS]caler\(\s*loss"
)
_DROP: Final = "drop the argument; the launcher decides then"


@configuration_check("precision_mismatch", "high", "")
def precision_mismatch(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The trainer, the launcher and DeepSpeed name different dtypes.

    Certain where it is plain that they are run together.
    """
    mine = _asked_dtype(source)
    if mine is None or source.role == "deepspeed" or (source.kind == "argparse" and _overridden(source, repository)):
        return
    roles: tuple[SourceRole, ...] = ("deepspeed",) if source.role == "launcher" else ("launcher", "deepspeed")
    many = sum(each.kind == source.kind for each in repository.by_role("trainer")) > _MANY and not source.references
    if many and source.kind in ("yaml", "json", "toml"):
        return  # one of many experiments: which launcher it is run with is not known
    for role in roles:
        theirs = repository.agreed(repository.partners(source, role), _asked_dtype)
        if theirs is not None and theirs[0] != mine[0]:
            here, there = (f"{_SHORT[dtype]} ({setting.name}" for dtype, setting in (mine, theirs))
            place = f"{theirs[1].file}:{theirs[1].line}"
            yield Sighting.at(
                mine[1],
                f"{_ROLES[source.role]} asks for {here}), {_ROLES[role]} for {there} at {place})",
                fix=f"name {_SHORT[theirs[0]]} in both, or leave one of them out",
                doubt=_apart(source, role, repository),
            )
            return


@configuration_check("both_half_flags", "high", "keep one: bf16 where the hardware has it, else fp16")
def both_half_flags(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """fp16 and bf16 are both switched on."""
    fp16, bf16 = half_flags(source)
    for first, second in ((one, other) for one in fp16 for other in bf16):
        if _section(first) == _section(second):
            words = f"{first.name} (line {first.line}) and {second.name} are both on"
            yield Sighting(second.line, True, words, file=second.file)
            return


@configuration_check("fp16_without_loss_scaling", "high", "use bf16-mixed, or 16-mixed, which scales the loss")
def fp16_without_loss_scaling(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """float16 is used without a loss scaler."""
    if any(number(each.value) for each in (*source.all("scaler"), *source.all("loss_scale"))):
        return  # a fixed scale, as on processors whose weights are float16
    for each in source.all("precision"):
        found = precision(each.value)
        if found is not None and found.dtype == "float16" and found.weights:
            words = "weights, gradients and optimizer state in float16, without loss scaling"
            yield Sighting.at(each, f"{each.name} is {each.value}: {words}")


@source_check("fp16_without_loss_scaling", "high", "use dtype=torch.bfloat16, or a GradScaler")
def fp16_without_scaler(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A float16 autocast region whose backward uses no scaler."""
    if "autocast" not in module.calls or _SCALER.search(module.text):
        return
    if "Accelerator" in module.calls or "scale_loss" in module.calls:
        return
    steps_elsewhere = any("step" in each.calls for each in repository.modules if each is not module)
    for flow in all_flows(module):
        backwards = [event for event in flow.of("backward") if not event.scaled and not event.managed]
        for event in flow.of("autocast") if backwards else ():
            if "ctx" in event.function.parameters:
                continue  # a part of autograd, which enters the region of the forward pass again
            dtype = _autocast_dtype(event.node, event.function)
            if dtype in ("float16", "default") and any(follows(event, backward) for backward in backwards):
                meant = "float16" if dtype == "float16" else "without a dtype, which is float16 on CUDA,"
                words = f"whose backward (line {backwards[0].line}) uses no GradScaler: small gradients become zero"
                doubt = _unseen_of(module, flow, event, steps_elsewhere=steps_elsewhere)
                yield Sighting.of(event.node, f"autocast {meant} around a loss {words}", doubt=doubt)


@configuration_check(
    "amp_without_dtype", "medium", "name the dtype: bf16: true, and dtype=torch.bfloat16 in torch.autocast"
)
def amp_without_dtype(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """Mixed precision is switched on, but nothing says in which dtype."""
    asked = computation(source)
    if source.role != "trainer" or asked is None or asked.dtype != "amp" or asked.setting.value == "amp":
        return
    if any(switch(each.value) is not False and each.known for each in source.all("scaler")) or repository.scales:
        return
    if repository.names_dtype or not _takes_float16(repository):
        return
    keys = [each for each in source.settings if each.key in ("precision", "weight_dtype", "loss_scale")]
    if any(each.value not in (True, None) and not says_no(each.value) for each in keys):
        return
    if not any(source.first(key) for key in ("lr", "optimizer", "epochs", "total_steps", "batch_size", "min_lr")):
        return
    if any(not each.known for each in (*source.all("fp16"), *source.all("bf16"))):
        return
    launcher = _launcher(source, repository, "bfloat16")
    named = "amp" in asked.setting.names[-1] or "amp" in asked.setting.parent
    yield Sighting.at(
        asked.setting,
        f"{asked.setting.name} is on and no dtype is named: torch.autocast on CUDA takes float16, "
        "without loss scaling unless the code has a GradScaler"
        + (f", while the launcher says bf16 ({launcher.place})" if launcher else ""),
        risk="high" if launcher else "medium" if named else "low",
        doubt=launcher.doubt if launcher else "",
    )


@source_check("amp_without_dtype", "medium", "use accelerator.autocast(), or name the dtype")
def autocast_under_accelerator(module: Module, repository: Repository) -> Iterator[Sighting]:
    """`torch.autocast("cuda")` in a script that is run by Accelerate: it does not follow the launcher."""
    if "Accelerator" not in module.calls or "GradScaler" in module.calls:
        return
    for call, place in module.sites("autocast"):
        if _autocast_dtype(call, place.function) == "default" and _around_loss(place):
            launcher = _launcher(SettingSource(module.file, "call", (), "code"), repository, "bfloat16")
            words = "autocast without a dtype is float16 on CUDA, whatever Accelerate was configured for"
            if launcher is None:
                yield Sighting.of(call, words)
            else:
                words += f", and the launcher says bf16 ({launcher.place})"
                yield Sighting.of(call, words, risk="high", doubt=launcher.doubt)


@configuration_check("scaler_with_bf16", "medium", "switch the scaler off; bf16 needs none")
def scaler_with_bf16(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """A loss scaler is used exactly when training is in bfloat16."""
    asked = computation(source)
    if asked is None or asked.dtype != "bfloat16" or source.role != "trainer":
        return
    for each in source.all("scaler"):
        if switch(each.value):
            where = f"({asked.setting.name}, line {asked.setting.line})"
            yield Sighting.at(each, f"{each.name} is on and training is in bf16 {where}")


@source_check("scaler_with_bf16", "medium", "remove it, or enable it for float16 only")
def scaler_for_bfloat16(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A GradScaler that is enabled exactly for bfloat16."""
    for call, place in module.sites("GradScaler"):
        enabled = keyword_of(call, "enabled")
        dtypes = {_autocast_dtype(other, where.function) for other, where in module.sites("autocast")}
        always = enabled is None or place.function.value(enabled) is True
        if (always and dtypes == {"bfloat16"}) or (enabled and _only_bfloat16(enabled, place.function)):
            yield Sighting.of(call, "the GradScaler is on exactly when training is in bfloat16, which needs none")


@configuration_check("explicit_no_overrides_launcher", "high", _DROP)
def explicit_no_overrides_launcher(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The code says mixed_precision="no" although the launcher asks for half precision."""
    setting = next((each for each in source.settings if each.names == ("mixed_precision",)), None)
    if source.role != "code" or setting is None or not says_no(setting.value):
        return
    launcher = _launcher(source, repository, "float16", "bfloat16")
    if launcher is not None:
        asks = f"{_SHORT[launcher.dtype]} ({launcher.place})"
        words = f'mixed_precision="no" overrides the launcher, which asks for {asks}'
        yield Sighting(setting.line, "no", words, file=setting.file, doubt=launcher.doubt)


@source_check("explicit_no_overrides_launcher", "high", _DROP)
def accelerator_says_no(module: Module, repository: Repository) -> Iterator[Sighting]:
    """`Accelerator(mixed_precision=...)` whose value is a choice, or is in a configuration file."""
    for call, place in module.sites("Accelerator"):
        given = keyword_of(call, "mixed_precision")
        if given is None or (isinstance(given, ast.Constant) and module.value(given) is not UNKNOWN):
            continue
        here = SettingSource(module.file, "call", (), "code", line=call.lineno)
        launcher = _launcher(here, repository, "float16", "bfloat16")
        choices = possible_values(place.function, given, repository)
        if launcher is None or _SHORT[launcher.dtype] in map(str, choices) or not any(map(says_no, choices)):
            continue
        text, asks = ast.unparse(given), f"which the launcher asks for ({launcher.place})"
        words = f'mixed_precision={text} can be "no" and is never {launcher.dtype}, {asks}'
        yield Sighting(call.lineno, text, words, doubt=launcher.doubt)


@configuration_check("static_loss_scale", "medium", "set it to 0 (or dynamic), so that it adapts")
def static_loss_scale(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """fp16 runs with a loss scale that never changes."""
    for each in source.all("loss_scale"):
        if (number(each.value) or 0) > 0 and _fp16_beside(source, each) and not _is_weight(source, each):
            words = "the loss scale of fp16 is fixed and cannot follow the gradients"
            yield Sighting.at(each, f"{each.name} is {each.value}: {words}")


@source_check("static_loss_scale", "medium", 'use loss_scale="dynamic"')
def apex_loss_scale(module: Module, repository: Repository) -> Iterator[Sighting]:
    """`amp.initialize(..., loss_scale=128.0)` of apex."""
    for call, place in module.sites("initialize"):
        scale = number(place.function.value(keyword_of(call, "loss_scale")))
        if "amp" in module.resolve(call.func) and scale is not None and scale > 0:
            yield Sighting(call.lineno, scale, f"the loss scale is fixed at {scale:g}")


@source_check("scaler_made_in_loop", "medium", "make it once, before the loop")
def scaler_made_in_loop(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A new GradScaler is made again and again."""
    if "GradScaler" not in module.calls or "step" not in module.calls:
        return
    for flow in all_flows(module):
        for scaler in flow.of("scaler"):
            stepping, making = (
                any(set(scaler.around.loops) & set(each.around.loops) for each in flow.of(kind))
                for kind in ("step", "optimizer")
            )
            if stepping and not making:
                words = "a new GradScaler in each pass of a loop that trains: its scale is lost every time"
                yield Sighting(scaler.line, ast.unparse(scaler.node), words)


def _asked_dtype(source: SettingSource) -> tuple[str, Setting] | None:
    """The dtype that a source names, for comparison with another source."""
    asked = computation(source)
    return (asked.dtype, asked.setting) if asked is not None and asked.dtype in _SHORT else None


class _Launcher(NamedTuple):
    """What the launcher of a source asks for: the dtype, the file and line, and why the two may not run together."""

    dtype: str
    place: str
    doubt: str


def _launcher(source: SettingSource, repository: Repository, *dtypes: str) -> _Launcher | None:
    """What the launcher files beside a source agree on, if it is one of these dtypes."""
    theirs = repository.agreed(repository.partners(source, "launcher"), _asked_dtype)
    if theirs is None or theirs[0] not in dtypes:
        return None
    return _Launcher(theirs[0], f"{theirs[1].file}:{theirs[1].line}", _apart(source, "launcher", repository))


def _apart(source: SettingSource, role: SourceRole, repository: Repository) -> str:
    """Words for a source that nothing connects with the launcher or DeepSpeed file near it; empty if something does."""
    return "" if repository.runs_with(source, role) else "whether the two run together was not seen"


def _fp16_beside(source: SettingSource, scale: Setting) -> bool:
    if scale.parent and scale.parent[-1] in ("fp16", "amp", "mixed_precision"):
        switches = [each for each in source.all("fp16") if each.names[: len(scale.parent)] == scale.parent]
        if switches:
            return all(switch(each.value) is True for each in switches)
    asked = computation(source)
    return asked is not None and asked.dtype == "float16"


def _is_weight(source: SettingSource, scale: Setting) -> bool:
    beside = [each.names[-1] for each in source.settings if each.parent == scale.parent and each is not scale]
    return any(name.endswith(("_weight", "_loss", "_coef", "_lambda")) and "loss" in name for name in beside)


def _section(setting: Setting) -> tuple[str, ...]:
    """The section of a switch; that of `fp16.enabled` is the one that contains `fp16`."""
    return setting.names[:-2] if setting.names[-1] in ("enabled", "enable") else setting.parent


def _overridden(source: SettingSource, repository: Repository) -> bool:
    """Whether a launch line may give another value for an argparse default."""
    scripts = [line.script.rsplit("/", 1)[-1] for line in repository.sources if line.kind == "shell" and line.script]
    return any(map(source.file.endswith, scripts))


def _takes_float16(repository: Repository) -> bool:
    """Whether a region without a dtype can be float16: the code opens one, or no training code was read."""
    for module in repository.modules:
        for call, _ in module.calls.get("autocast", ()):
            devices = [module.value(node) for node in (*call.args, keyword_of(call, "device_type"))]
            if module.resolve(call.func) in _AUTOCAST and not keyword_of(call, "dtype") and "cpu" not in devices:
                return True
    return not any("backward" in module.calls for module in repository.modules)


def _autocast_dtype(call: ast.AST, function: Function) -> str | None:
    """`float16`, `bfloat16`, `default` for CUDA without a dtype; None if it is off, not CUDA's, or not known."""
    assert isinstance(call, ast.Call)
    name = function.module.resolve(call.func)
    if name not in _AUTOCAST or function.value(keyword_of(call, "enabled")) is False:
        return None
    cuda_only = ".cuda." in name  # autocast(enabled, dtype), else autocast(device, dtype)
    dtype = keyword_of(call, "dtype") or next(iter(call.args[1:2]), None)
    if dtype is not None:
        found = precision(function.value(dtype))
        return found.dtype if found is not None and found.dtype != "float32" else None
    device = keyword_of(call, "device_type") or next(iter(call.args[:1]), None)
    return "default" if cuda_only or _is_cuda(device, function) else None


def _is_cuda(node: ast.expr | None, function: Function) -> bool:
    """Whether a device is CUDA, by its value or by the text that it was assigned from."""
    value = function.value(node)
    if isinstance(value, str):
        return value.startswith("cuda")
    if node is None or value is not UNKNOWN:
        return False
    inner = node.value if isinstance(node, ast.Attribute) and node.attr == "type" else node
    given = function.given(inner, node.lineno) or function.module.functions[0].given(inner, 1 << 30)
    text = ast.unparse(given or inner)
    return "'cuda" in text or '"cuda' in text


def _unseen_of(module: Module, flow: LoopFlow, event: LoopEvent, *, steps_elsewhere: bool) -> str:
    """What shows of an autocast region that its loss is not trained on; empty if nothing does."""
    if steps_elsewhere and not flow.trains:
        return "no step of an optimizer was seen"
    place = next(place for call, place in module.calls["autocast"] if call is event.node)
    seen = _around_loss(place) or _feeds_loss(module, place)
    return "" if seen else "the loss was not seen to be computed in it"


def _feeds_loss(module: Module, place: CodePlace) -> bool:
    """Whether a with-block returns something, or sets a name from which a loss is made."""
    block: ast.stmt = place.statement
    if isinstance(block, ast.Assign):  # ctx = autocast(), then `with ctx:`
        name = dotted(block.targets[0])
        opened = (each for each in ast.walk(place.function.node) if isinstance(each, ast.With))
        block = next((e for e in opened if name in {dotted(item.context_expr) for item in e.items} - {""}), block)
    if isinstance(block, ast.Return):  # with the_context(...):
        callers = [at for _, at in module.sites(place.function.name) if isinstance(at.statement, ast.With)]
        return any(_carries(module, at.statement, at.function) for at in callers)
    return _carries(module, block, place.function)


def _carries(module: Module, block: ast.stmt, function: Function) -> bool:
    """Whether a with-block sets names from which a loss is made or returned, or returns one itself."""
    if not isinstance(block, (ast.With, ast.AsyncWith)):
        return False
    nodes = [each for part in block.body for each in ast.walk(part)]
    if any(isinstance(each, ast.Return) for each in nodes):
        return True
    carried = {dotted(each) for each in nodes if isinstance(getattr(each, "ctx", None), ast.Store)} - {""}
    given = [(line, name, value) for name, values in function.assigned.items() for line, value in values]
    for line, name, value in sorted(given, key=lambda each: each[0]):
        if line > block.lineno and carried & used_in(value):
            carried.add(name)
    backwards = [call.func for call, at in module.calls.get("backward", ()) if at.function is function]
    trained = {dotted(func.value) for func in backwards if isinstance(func, ast.Attribute)}
    if not trained and not isinstance(function.node, ast.Module):
        returns = [each for each in ast.walk(function.node) if isinstance(each, ast.Return)]
        trained = {dotted(part) for each in returns for part in ast.walk(each) if each.lineno > block.lineno} - {""}
    return bool(carried & trained) or any(is_loss(ast.Name(name.rsplit(".", 1)[-1])) for name in carried)


def _around_loss(place: CodePlace) -> bool:
    """Whether a with-block computes a loss that is trained on."""
    statement = place.statement
    if not isinstance(statement, (ast.With, ast.AsyncWith)):
        return False
    nodes = [each for part in statement.body for each in ast.walk(part)]
    targets = [target for each in nodes if isinstance(each, ast.Assign) for target in each.targets]
    targets += [one for target in targets if isinstance(target, ast.Tuple) for one in target.elts]
    return any(map(is_loss, targets)) or any(call for part in statement.body for call in calls_in(part, "backward"))


def _only_bfloat16(node: ast.expr, function: Function) -> bool:
    """`dtype == "bfloat16"`, `args.bf16`, `ptdtype is torch.bfloat16`."""
    given = function.given(node) if function.value(node) is UNKNOWN else None
    if given is not None and given is not node:
        return _only_bfloat16(given, function)
    text = ast.unparse(node).lower()
    if "float16" in text.replace("bfloat16", "") or "fp16" in text or "half" in text:
        return isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.NotEq, ast.IsNot)) and "bf" not in text
    if "bfloat16" not in text and "bf16" not in text:
        return False
    return not any(isinstance(each, (ast.Not, ast.NotEq, ast.IsNot, ast.NotIn, ast.Or)) for each in ast.walk(node))
