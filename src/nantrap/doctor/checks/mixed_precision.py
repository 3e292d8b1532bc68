"""Checks of source code: autocast and the gradient scaler (NT803-NT805, NT857)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from nantrap.doctor.checks.precision import asked_dtype
from nantrap.doctor.checks.registry import Sighting, source_check
from nantrap.doctor.configuration.precision import precision
from nantrap.doctor.configuration.setting import UNKNOWN, SettingSource
from nantrap.doctor.repository import Repository
from nantrap.doctor.source.expressions import dotted, is_loss, name_of
from nantrap.doctor.source.flow import StepFlow, flow_of, follows
from nantrap.doctor.source.module import Function, Module, Site

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
    name = dotted(inner)
    given = function.latest(name, getattr(node, "lineno", 0)) if name else None
    if given is None and name:
        top = module.functions[0]
        given = top.latest(name, 1 << 30)
    text = ast.unparse(given) if given is not None else ast.unparse(inner)
    return "'cuda" in text or '"cuda' in text


@source_check("fp16_without_loss_scaling")
def fp16_without_scaler(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A float16 autocast region whose backward uses no scaler."""
    if "autocast" not in module.calls or module.is_test or _SCALER.search(module.text):
        return
    if "Accelerator" in module.calls or "scale_loss" in module.calls:
        return
    seen: set[int] = set()
    for flow in _differentiating(module):
        backwards = [event for event in flow.of("backward") if not event.scaled and not event.managed]
        if not backwards:
            continue
        for event in flow.of("autocast"):
            assert isinstance(event.node, ast.Call)
            dtype = autocast_dtype(module, event.node, event.function)
            if dtype not in ("float16", "default") or event.node.lineno in seen:
                continue
            if not any(follows(event, backward) for backward in backwards):
                continue
            seen.add(event.node.lineno)
            meant = "float16" if dtype == "float16" else "without a dtype, which is float16 on CUDA,"
            yield Sighting(
                "high",
                event.node.lineno,
                ast.unparse(event.node),
                f"autocast {meant} around a loss whose backward (line {backwards[0].line}) uses no GradScaler: "
                "small gradients become zero",
                "use dtype=torch.bfloat16, or a GradScaler",
            )


@source_check("amp_without_dtype")
def autocast_under_accelerator(module: Module, repository: Repository) -> Iterator[Sighting]:
    """`torch.autocast("cuda")` in a script that is run by Accelerate: it does not follow the launcher."""
    if "autocast" not in module.calls or "Accelerator" not in module.calls or module.is_test:
        return
    if "GradScaler" in module.calls:
        return
    for call, place in module.sites("autocast"):
        if autocast_dtype(module, call, place.function) != "default" or not _around_loss(place, call):
            continue
        here = SettingSource(module.file, "call", (), "code")
        theirs = repository.agreed(repository.partners(here, "launcher"), asked_dtype)
        bf16 = theirs is not None and theirs[0] == "bfloat16"
        yield Sighting(
            "high" if bf16 else "medium",
            call.lineno,
            ast.unparse(call),
            "autocast without a dtype is float16 on CUDA, whatever Accelerate was configured for"
            + (
                f", and the launcher says bf16 ({theirs[1].file}:{theirs[1].line})"
                if bf16 and theirs is not None
                else ""
            ),
            "use accelerator.autocast(), or name the dtype",
        )


@source_check("scaler_with_bf16")
def scaler_for_bfloat16(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A GradScaler that is enabled exactly for bfloat16."""
    for call, place in module.sites("GradScaler"):
        enabled = next((keyword.value for keyword in call.keywords if keyword.arg == "enabled"), None)
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


@source_check("scaler_made_in_loop")
def scaler_made_in_loop(module: Module, repository: Repository) -> Iterator[Sighting]:
    """A new GradScaler is made again and again."""
    seen: set[int] = set()
    for flow in _all_flows(module, "GradScaler"):
        steps = flow.of("step")
        optimizers = flow.of("optimizer")
        for scaler in flow.of("scaler"):
            if scaler.line in seen or not scaler.around.loops:
                continue
            around = set(scaler.around.loops)
            if not any(around & set(step.around.loops) for step in steps):
                continue
            if any(around & set(other.around.loops) for other in optimizers):
                continue
            seen.add(scaler.line)
            yield Sighting(
                "medium",
                scaler.line,
                ast.unparse(scaler.node),
                "a new GradScaler in each pass of a loop that trains: its scale is lost every time",
                "make it once, before the loop",
            )


def _differentiating(module: Module) -> Iterator[StepFlow]:
    """The flows of every function with a backward."""
    for function in module.functions:
        if not function.silent and not isinstance(function.node, ast.Lambda):
            flow = flow_of(module, function)
            if flow.of("backward"):
                yield flow


def _all_flows(module: Module, needed: str) -> Iterator[StepFlow]:
    if needed not in module.calls or "step" not in module.calls or module.is_test:
        return
    for function in module.functions:
        if not function.silent and not isinstance(function.node, ast.Lambda):
            yield flow_of(module, function)


def _around_loss(place: Site, call: ast.Call) -> bool:
    """Whether a with-block computes a loss that is trained on."""
    statement = place.statement
    if not isinstance(statement, (ast.With, ast.AsyncWith)):
        return False
    for part in statement.body:
        for each in ast.walk(part):
            if isinstance(each, ast.Assign):
                targets = [
                    t for target in each.targets for t in (target.elts if isinstance(target, ast.Tuple) else [target])
                ]
                if any(is_loss(target) for target in targets):
                    return True
            elif isinstance(each, ast.Call) and name_of(each.func) == "backward":
                return True
    return False


def _only_bfloat16(node: ast.expr, module: Module, function: Function) -> bool:
    """`dtype == "bfloat16"`, `args.bf16`, `ptdtype is torch.bfloat16`."""
    name = dotted(node)
    if name and module.value(node, function) is UNKNOWN:
        given = function.latest(name, node.lineno)
        if given is not None and given is not node:
            return _only_bfloat16(given, module, function)
    text = ast.unparse(node).lower()
    if "float16" in text.replace("bfloat16", "") or "fp16" in text or "half" in text:
        return isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.NotEq, ast.IsNot)) and "bf" not in text
    if "bfloat16" not in text and "bf16" not in text:
        return False
    return not any(isinstance(each, (ast.Not, ast.NotEq, ast.IsNot, ast.NotIn, ast.Or)) for each in ast.walk(node))


def _scaler_found(call: ast.Call) -> Sighting:
    return Sighting(
        "medium",
        call.lineno,
        ast.unparse(call),
        "the GradScaler is on exactly when training is in bfloat16, which needs none",
        "remove it, or enable it for float16 only",
    )
