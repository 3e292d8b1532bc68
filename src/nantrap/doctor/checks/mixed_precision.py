"""Checks of mixed precision, in settings and in code (NT801-NT807, NT857).

Which dtype, whether every part asks for the same, autocast and the gradient scaler.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from nantrap.doctor.checks.registry import Sighting, configuration_check, source_check
from nantrap.doctor.configuration.precision import Asked, computation, half_flags, precision, says_no
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


@configuration_check("precision_mismatch")
def precision_mismatch(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The trainer, the launcher and DeepSpeed name different dtypes.

    Certain where it is plain that they are run together.
    """
    if source.role == "launcher":
        pairs = repository.partners(source, "deepspeed")
    elif source.role in ("trainer", "code"):
        pairs = [*repository.partners(source, "launcher"), *repository.partners(source, "deepspeed")]
    else:
        return
    mine = asked_dtype(source)
    if mine is None or (source.kind == "argparse" and _overridden(source, repository)):
        return
    many = sum(each.kind == source.kind for each in repository.by_role("trainer")) > _MANY and not source.references
    role: SourceRole
    for role in ("launcher", "deepspeed"):
        if many and source.kind in ("yaml", "json", "toml"):
            return  # one of many experiments: which launcher it is run with is not known
        theirs = repository.agreed([each for each in pairs if each.role == role], asked_dtype)
        if theirs is not None and theirs[0] != mine[0]:
            there = theirs[1]
            yield Sighting.at(
                mine[1],
                "high",
                f"{_ROLES[source.role]} asks for {_SHORT[mine[0]]} ({mine[1].name}), {_ROLES[role]} for "
                f"{_SHORT[theirs[0]]} ({there.name} at {there.file}:{there.line})",
                f"name {_SHORT[theirs[0]]} in both, or leave one of them out",
                doubt=_apart(source, role, repository),
            )
            return


@configuration_check("both_half_flags")
def both_half_flags(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """fp16 and bf16 are both switched on."""
    fp16, bf16 = half_flags(source)
    for first in fp16:
        for second in bf16:
            if _section(first) == _section(second):
                yield Sighting(
                    "high",
                    second.line,
                    True,
                    f"{first.name} (line {first.line}) and {second.name} are both on",
                    "keep one: bf16 where the hardware has it, else fp16",
                    second.file,
                )
                return


@configuration_check("fp16_without_loss_scaling")
def fp16_without_loss_scaling(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """float16 is used without a loss scaler."""
    for each in source.all("precision"):
        found = precision(each.value)
        if found is not None and found.dtype == "float16" and found.weights:
            yield Sighting.at(
                each,
                "high",
                f"{each.name} is {each.value}: weights, gradients and optimizer state in float16, without loss scaling",
                "use bf16-mixed, or 16-mixed, which scales the loss",
            )


@source_check("fp16_without_loss_scaling")
def fp16_without_scaler(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A float16 autocast region whose backward uses no scaler."""
    if "autocast" not in module.calls or _SCALER.search(module.text):
        return
    if "Accelerator" in module.calls or "scale_loss" in module.calls:
        return
    steps_elsewhere = any("step" in each.calls for each in repository.modules if each is not module)
    for flow in all_flows(module):
        backwards = [event for event in flow.of("backward") if not event.scaled and not event.managed]
        if not backwards:
            continue
        for event in flow.of("autocast"):
            if "ctx" in event.function.parameters:
                continue  # a part of autograd, which enters the region of the forward pass again
            assert isinstance(event.node, ast.Call)
            dtype = autocast_dtype(module, event.node, event.function)
            if dtype not in ("float16", "default"):
                continue
            if not any(follows(event, backward) for backward in backwards):
                continue
            meant = "float16" if dtype == "float16" else "without a dtype, which is float16 on CUDA,"
            yield Sighting.of(
                event.node,
                "high",
                f"autocast {meant} around a loss whose backward (line {backwards[0].line}) uses no GradScaler: "
                "small gradients become zero",
                "use dtype=torch.bfloat16, or a GradScaler",
                doubt=_unseen_of(module, flow, event, steps_elsewhere=steps_elsewhere),
            )


@configuration_check("amp_without_dtype")
def amp_without_dtype(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """Mixed precision is switched on, but nothing says in which dtype."""
    asked = computation(source)
    if source.role != "trainer" or asked is None or asked.dtype != "amp" or asked.setting.value == "amp":
        return
    if any(switch(each.value) is not False and each.known for each in source.all("scaler")) or repository.scales:
        return
    if repository.names_dtype or not _takes_float16(repository):
        return
    if any(
        each.key in ("precision", "weight_dtype", "loss_scale")
        and each.value is not True
        and not says_no(each.value)
        and each.value is not None
        for each in source.settings
    ):
        return
    if not any(source.first(key) for key in ("lr", "optimizer", "epochs", "total_steps", "batch_size", "min_lr")):
        return
    if any(not each.known for each in (*source.all("fp16"), *source.all("bf16"))):
        return
    launcher = _launcher(source, repository, "bfloat16")
    named = "amp" in asked.setting.names[-1] or "amp" in asked.setting.parent
    yield Sighting.at(
        asked.setting,
        "high" if launcher else "medium" if named else "low",
        f"{asked.setting.name} is on and no dtype is named: torch.autocast on CUDA takes float16, "
        "without loss scaling unless the code has a GradScaler"
        + (f", while the launcher says bf16 ({launcher.place})" if launcher else ""),
        "name the dtype: bf16: true, and dtype=torch.bfloat16 in torch.autocast",
        doubt=launcher.doubt if launcher else "",
    )


@source_check("amp_without_dtype")
def autocast_under_accelerator(module: Module, repository: Repository) -> Iterator[Sighting]:
    """`torch.autocast("cuda")` in a script that is run by Accelerate: it does not follow the launcher."""
    if "autocast" not in module.calls or "Accelerator" not in module.calls:
        return
    if "GradScaler" in module.calls:
        return
    for call, place in module.sites("autocast"):
        if autocast_dtype(module, call, place.function) != "default" or not _around_loss(place):
            continue
        here = SettingSource(module.file, "call", (), "code")
        launcher = _launcher(here, repository, "bfloat16")
        yield Sighting.of(
            call,
            "high" if launcher else "medium",
            "autocast without a dtype is float16 on CUDA, whatever Accelerate was configured for"
            + (f", and the launcher says bf16 ({launcher.place})" if launcher else ""),
            "use accelerator.autocast(), or name the dtype",
            doubt=launcher.doubt if launcher else "",
        )


@configuration_check("scaler_with_bf16")
def scaler_with_bf16(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """A loss scaler is used exactly when training is in bfloat16."""
    asked = computation(source)
    if asked is None or asked.dtype != "bfloat16" or source.role != "trainer":
        return
    for each in source.all("scaler"):
        if switch(each.value) and each.value is not None:
            yield Sighting.at(
                each,
                "medium",
                f"{each.name} is on and training is in bf16 ({asked.setting.name}, line {asked.setting.line})",
                "switch the scaler off; bf16 needs none",
            )


@source_check("scaler_with_bf16")
def scaler_for_bfloat16(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A GradScaler that is enabled exactly for bfloat16."""
    for call, place in module.sites("GradScaler"):
        enabled = keyword_of(call, "enabled")
        if enabled is not None:
            if _only_bfloat16(enabled, module, place.function):
                yield _scaler_found(call)
            if module.value(enabled, place.function) is not True:
                continue
        dtypes = {
            autocast_dtype(module, other, where.function)
            for other, where in module.calls.get("autocast", ())
            if not where.silent
        }
        plain = [other for other, _ in module.calls.get("autocast", ())]
        if dtypes == {"bfloat16"} and plain:
            yield _scaler_found(call)


@configuration_check("explicit_no_overrides_launcher")
def explicit_no_overrides_launcher(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """The code says mixed_precision="no" although the launcher asks for half precision."""
    if source.role != "code":
        return
    setting = next((each for each in source.settings if each.names == ("mixed_precision",)), None)
    if setting is None or not setting.known or not says_no(setting.value):
        return
    yield from overridden_by_no(source, setting, repository)


@source_check("explicit_no_overrides_launcher")
def accelerator_says_no(module: Module, repository: Repository) -> Iterator[Sighting]:
    """`Accelerator(mixed_precision=...)` whose value is a choice, or is in a configuration file."""
    for call, place in module.sites("Accelerator"):
        given = keyword_of(call, "mixed_precision")
        if given is None or (isinstance(given, ast.Constant) and module.value(given) is not UNKNOWN):
            continue
        here = SettingSource(module.file, "call", (), "code", line=call.lineno)
        launcher = _launcher(here, repository, "float16", "bfloat16")
        if launcher is None:
            continue
        choices = possible_values(module, given, place.function, repository)
        names = {"bf16": "bfloat16", "fp16": "float16"}
        if any(says_no(each) for each in choices) and not any(
            names.get(str(each)) == launcher.dtype for each in choices
        ):
            yield Sighting(
                "high",
                call.lineno,
                ast.unparse(given),
                f'mixed_precision={ast.unparse(given)} can be "no" and is never {launcher.dtype}, which the launcher '
                f"asks for ({launcher.place})",
                "drop the argument; the launcher decides then",
                doubt=launcher.doubt,
            )


@configuration_check("static_loss_scale")
def static_loss_scale(source: SettingSource, repository: Repository) -> Iterator[Sighting]:
    """fp16 runs with a loss scale that never changes."""
    for each in source.all("loss_scale"):
        scale = number(each.value)
        if scale is None or scale <= 0 or not _fp16_beside(source, each) or _is_weight(source, each):
            continue
        yield Sighting.at(
            each,
            "medium",
            f"{each.name} is {each.value}: the loss scale of fp16 is fixed and cannot follow the gradients",
            "set it to 0 (or dynamic), so that it adapts",
        )


@source_check("static_loss_scale")
def apex_loss_scale(module: Module, repository: Repository) -> Iterator[Sighting]:
    """`amp.initialize(..., loss_scale=128.0)` of apex."""
    for call, place in module.sites("initialize"):
        if "amp" not in module.resolve(call.func):
            continue
        given = keyword_of(call, "loss_scale")
        scale = number(module.value(given, place.function)) if given is not None else None
        if scale is not None and scale > 0:
            yield Sighting(
                "medium", call.lineno, scale, f"the loss scale is fixed at {scale:g}", 'use loss_scale="dynamic"'
            )


@source_check("scaler_made_in_loop")
def scaler_made_in_loop(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A new GradScaler is made again and again."""
    if "GradScaler" not in module.calls or "step" not in module.calls:
        return
    for flow in all_flows(module):
        steps = flow.of("step")
        optimizers = flow.of("optimizer")
        for scaler in flow.of("scaler"):
            if not scaler.around.loops:
                continue
            around = set(scaler.around.loops)
            if not any(around & set(step.around.loops) for step in steps):
                continue
            if any(around & set(other.around.loops) for other in optimizers):
                continue
            yield Sighting(
                "medium",
                scaler.line,
                ast.unparse(scaler.node),
                "a new GradScaler in each pass of a loop that trains: its scale is lost every time",
                "make it once, before the loop",
            )


def asked_dtype(source: SettingSource) -> tuple[str, Setting] | None:
    """The dtype that a source names, for comparison with another source."""
    asked = computation(source)
    return (asked.dtype, asked.setting) if asked is not None and asked.dtype in _SHORT else None


def overridden_by_no(source: SettingSource, setting: Setting, repository: Repository) -> Iterator[Sighting]:
    """The finding of NT806 at a setting, if the launcher asks for half precision."""
    launcher = _launcher(source, repository, "float16", "bfloat16")
    if launcher is not None:
        yield Sighting(
            "high",
            setting.line,
            "no",
            f'mixed_precision="no" overrides the launcher, which asks for {_SHORT[launcher.dtype]} ({launcher.place})',
            "drop the argument; the launcher decides then",
            setting.file,
            launcher.doubt,
        )


class _Launcher(NamedTuple):
    """What the launcher of a source asks for: the dtype, the file and line, and why the two may not run together."""

    dtype: str
    place: str
    doubt: str


def _launcher(source: SettingSource, repository: Repository, *dtypes: str) -> _Launcher | None:
    """What the launcher files beside a source agree on, if it is one of these dtypes."""
    theirs = repository.agreed(repository.partners(source, "launcher"), asked_dtype)
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
    asked: Asked | None = computation(source)
    return asked is not None and asked.dtype == "float16"


def _is_weight(source: SettingSource, scale: Setting) -> bool:
    beside = [each.names[-1] for each in source.settings if each.parent == scale.parent and each is not scale]
    return any(name.endswith(("_weight", "_loss", "_coef", "_lambda")) and "loss" in name for name in beside)


def _section(setting: Setting) -> tuple[str, ...]:
    """The section of a switch; that of `fp16.enabled` is the one that contains `fp16`."""
    return setting.names[:-2] if setting.names[-1] in ("enabled", "enable") else setting.parent


def _overridden(source: SettingSource, repository: Repository) -> bool:
    """Whether a launch line may give another value for an argparse default."""
    return any(
        line.kind == "shell" and line.script and source.file.endswith(line.script.rsplit("/", 1)[-1])
        for line in repository.sources
    )


def _takes_float16(repository: Repository) -> bool:
    """Whether a region without a dtype can be float16: the code opens one, or no training code was read."""
    for module in repository.modules:
        for call, _place in module.calls.get("autocast", ()):
            given = {keyword.arg for keyword in call.keywords}
            devices = [value for node in (*call.args, keyword_of(call, "device_type")) if (value := module.value(node))]
            if module.resolve(call.func) in _AUTOCAST and "dtype" not in given and "cpu" not in devices:
                return True
    return not any("backward" in module.calls for module in repository.modules)


def autocast_dtype(module: Module, call: ast.Call, function: Function) -> str | None:
    """`float16`, `bfloat16`, `default` for CUDA without a dtype; None if it is off, not CUDA's, or not known."""
    name = module.resolve(call.func)
    if name not in _AUTOCAST:
        return None
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if "enabled" in keywords and module.value(keywords["enabled"], function) is False:
        return None
    cuda_only = ".cuda." in name
    positional = list(call.args)
    device = None if cuda_only else keywords.get("device_type", positional[0] if positional else None)
    rest = positional if cuda_only else positional[1:]
    dtype = keywords.get(
        "dtype", rest[1] if cuda_only and len(rest) > 1 else rest[0] if not cuda_only and rest else None
    )
    if dtype is not None:
        found = precision(module.value(dtype, function))
        return found.dtype if found is not None and found.dtype != "float32" else None
    return "default" if cuda_only or _is_cuda(module, device, function) else None


def _is_cuda(module: Module, node: ast.AST | None, function: Function) -> bool:
    """Whether a device is CUDA, by its value or by the text that it was assigned from."""
    if node is None:
        return False
    value = module.value(node, function)
    if isinstance(value, str):
        return value.startswith("cuda")
    if value is not UNKNOWN:
        return False
    inner = node.value if isinstance(node, ast.Attribute) and node.attr == "type" else node
    given = function.given(inner, getattr(node, "lineno", 0)) or module.functions[0].given(inner, 1 << 30)
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
    later = [
        (line, name, value)
        for name, values in function.assigned.items()
        for line, value in values
        if line > block.lineno
    ]
    for _, name, value in sorted(later, key=lambda each: each[0]):
        if carried & used_in(value):
            carried.add(name)
    trained = {
        dotted(call.func.value)
        for call, at in module.calls.get("backward", ())
        if at.function is function and isinstance(call.func, ast.Attribute)
    }
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


def _only_bfloat16(node: ast.expr, module: Module, function: Function) -> bool:
    """`dtype == "bfloat16"`, `args.bf16`, `ptdtype is torch.bfloat16`."""
    given = function.given(node) if module.value(node, function) is UNKNOWN else None
    if given is not None and given is not node:
        return _only_bfloat16(given, module, function)
    text = ast.unparse(node).lower()
    if "float16" in text.replace("bfloat16", "") or "fp16" in text or "half" in text:
        return isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.NotEq, ast.IsNot)) and "bf" not in text
    if "bfloat16" not in text and "bf16" not in text:
        return False
    return not any(isinstance(each, (ast.Not, ast.NotEq, ast.IsNot, ast.NotIn, ast.Or)) for each in ast.walk(node))


def _scaler_found(call: ast.Call) -> Sighting:
    return Sighting.of(
        call,
        "medium",
        "the GradScaler is on exactly when training is in bfloat16, which needs none",
        "remove it, or enable it for float16 only",
    )
