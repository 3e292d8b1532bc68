"""Advice carried out on the program that it was printed for: as a text edit, or as the change that its words describe.

Nothing here knows how nantrap tries a change. A form (`torch.sqrt(x + 1e-12)`) is written into the source with the
operands of the call; words are carried out on the model, the batch or the optimizer that they name.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import gc
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import nantrap
from nantrap.incident import Alternative, Incident

OPERATORS = {ast.Div: {"div", "divide", "safe_divide"}, ast.Pow: {"pow", "safe_pow"}}
LOGARITHMS = {
    "log_softmax(x) instead of log(softmax(x))": ("softmax", "torch.nn.functional.log_softmax"),
    "logsigmoid(x) instead of log(sigmoid(x))": ("sigmoid", "torch.nn.functional.logsigmoid"),
    "logsigmoid(-x) instead of log(1 - sigmoid(x))": ("sigmoid", "-"),
    "softplus(x) instead of log(1 + exp(x))": ("exp", "torch.nn.functional.softplus"),
    "x instead of log(exp(x))": ("exp", ""),
}
ALIASES = {"safe_acos": ("acos", "arccos"), "safe_asin": ("asin", "arcsin"), "xlogx": ("entr",), "acos": ("arccos",)}


class NotCarriedOutError(Exception):
    """The words mean something that this file cannot do."""


@dataclass
class Edit:
    """What a piece of advice does to a program: new source, or a change of what the program made."""

    source: str
    prepare: list[Callable[[dict[str, Any]], object]] = field(default_factory=list)
    around: list[Callable[[], contextlib.AbstractContextManager[Any]]] = field(default_factory=list)
    batch: Callable[[Any], Any] = lambda batch: batch
    before_update: list[Callable[[dict[str, Any]], object]] = field(default_factory=list)
    at_the_step: bool = False
    """Whether `batch` and `before_update` belong to the failed step alone."""


INSIDE = " inside what is called"
"""The call is in a module or in a library, and not in the lines of the program: there is no text to edit."""


def verified(incident: Incident) -> Iterator[tuple[Alternative, str]]:
    """Every alternative of every cause that is called verified, with its diff."""
    for cause in incident.causes:
        if cause.fix is not None:
            every = (Alternative(cause.fix.text, cause.fix.verified, cause.fix.trial), *cause.fix.others)
            for number, one in enumerate(every):
                if one.verified and INSIDE not in one.text:
                    yield one, cause.fix.diff if number == 0 else ""


def edit_for(source: str, incident: Incident, text: str, diff: str) -> Edit:
    """The program after the advice."""
    if diff:
        return Edit(_patched(source, diff))
    lines = (
        [int(number) for number in re.findall(r"\d+", found.group(1))]
        if (found := re.search(r" in lines? ([\d and]+)$", text))
        else []
    )
    if not lines and incident.source is not None:
        lines = [incident.source.line]
    plain = re.sub(r" in lines? [\d and]+$", "", text)
    if any(one in plain for one in LOGARITHMS):
        return Edit(_in_log_space(source, plain))
    if plain.endswith(("modules as they are", "every tensor it reads")):
        numbers = [int(n) for n in re.findall(r"\d+", plain.partition(" in float32")[0])]
        return Edit(_wide(source, numbers, modules=plain.endswith("reads")))
    if plain.startswith("torch.zeros, zeros_like or new_zeros instead of"):
        return Edit(re.sub(r"\b(torch\.|new_)empty", r"\1zeros", source))
    if plain == "the batch in the usual scale":
        return Edit(source, batch=_all(_usual))
    if (change := _described(plain, incident)) is not None:
        change.source = _in_dtype(source, plain)
        return change
    tree = ast.parse(source)
    writer = _Writer(plain.split(" and "), lines)
    new = ast.unparse(ast.fix_missing_locations(writer.visit(tree)))
    if not writer.hits:
        raise NotCarriedOutError(text)
    return Edit(new)


def _in_dtype(source: str, text: str) -> str:
    """The source with another dtype wherever it names one of half precision, if that is what the words say."""
    if text.startswith("every operation in float32"):
        source = re.sub(r"torch\.(float16|bfloat16|half)\b", "torch.float32", source)
        return re.sub(r"\.(half|bfloat16)\(\)", ".float()", source)
    if text.startswith("bfloat16 instead"):
        return re.sub(r"torch\.(float16|half)\b", "torch.bfloat16", source).replace(".half()", ".bfloat16()")
    return source


def _patched(source: str, diff: str) -> str:
    lines, before = source.splitlines(), ""
    for row in diff.splitlines():
        if row.startswith("-"):
            before = row[1:]
        else:
            assert lines.count(before) >= 1, f"the diff is not of this program: {before}"
            lines = [row[1:] if line == before else line for line in lines]
    return "\n".join(lines)


def _function(node: ast.expr) -> str:
    """The function that an expression calls."""
    if isinstance(node, ast.Call):
        return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    return ""


class _Writer(ast.NodeTransformer):
    """Writes forms at lines: each instead of the calls of its function."""

    def __init__(self, forms: list[str], lines: list[int]) -> None:
        self.lines, self.hits = lines, 0
        self.forms = [(form, self._replaces(form)) for form in forms]

    @staticmethod
    def _replaces(form: str) -> tuple[str, ...]:
        template = ast.parse(form, mode="eval").body
        if isinstance(template, ast.BinOp) and isinstance(template.op, ast.Div):
            inner = _function(template.left)  # log2 as a quotient of logarithms
            return ("div", "divide", "true_divide", "reciprocal") if inner == "" else ("log2", "log10")
        name = next(_function(node) for node in ast.walk(template) if isinstance(node, ast.Call))
        if form.startswith("a * "):
            return ("xlogy", "xlog1py")
        if form.startswith(("torch.log(1 + x", "nantrap.ops.safe_log(1 + x")):
            return ("log1p",)
        if form.startswith("nantrap.ops.safe_divide(1, nantrap.ops.safe_sqrt"):
            return ("rsqrt",)
        plain = name.removeprefix("safe_").removeprefix("masked_")
        return {"divide": ("div", "divide", "true_divide", "reciprocal")}.get(
            plain, ALIASES.get(name, (plain,)) + (plain,)
        )

    def visit(self, node: ast.AST) -> Any:
        """The form instead of the call."""
        node = self.generic_visit(node)
        if isinstance(node, ast.AugAssign) and node.lineno in self.lines:
            name = ast.unparse(node.target)
            again = ast.parse(f"{name}.copy_({name} / ({ast.unparse(node.value)}))").body[0]
            for one in ast.walk(again):
                one.lineno = node.lineno  # type: ignore[attr-defined]
            return self.visit(again)
        if not isinstance(node, (ast.BinOp, ast.Call)) or not {node.lineno, node.end_lineno} & set(self.lines):
            return node
        for form, names in self.forms:
            if isinstance(node, ast.BinOp):
                if not OPERATORS.get(type(node.op), set()) & set(names):
                    continue
                operands, keywords = [node.left, node.right], []
            else:
                if _function(node).removesuffix("_") not in names:
                    continue
                operands, keywords = list(node.args), list(node.keywords)
                if isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) not in (
                    "torch",
                    "F",
                    "torch.special",
                    "torch.linalg",
                    "nn.functional",
                    "torch.nn.functional",
                ):
                    operands.insert(0, node.func.value)
            template = ast.parse(form, mode="eval").body
            known = {one.id for one in ast.walk(template) if isinstance(one, ast.Name)}
            count = 2 if "b" in known else 1
            operands, rest = operands[:count], operands[count:]
            values = dict(zip(("a", "b") if count == 2 else ("x",), operands, strict=True))
            if "dim" in known:
                values["dim"] = keywords.pop(0).value if not rest else rest.pop(0)
            filled = _Names(values).visit(template)
            if rest or keywords:
                call = next(
                    one
                    for one in ast.walk(filled)
                    if (isinstance(one, ast.Call) and "ops" in ast.unparse(one.func))
                    or (isinstance(one, ast.Call) and "amax" in ast.unparse(one.func))
                )
                call.args += rest
                call.keywords += [k for k in keywords if k.arg not in ("zero_infinity", "unbiased")]
            self.hits += 1
            in_place = isinstance(node, ast.Call) and _function(node).endswith("_")
            if in_place:
                return ast.Call(ast.Attribute(operands[0], "copy_", ast.Load()), [filled], [])
            return filled
        return node


class _Names(ast.NodeTransformer):
    def __init__(self, values: dict[str, ast.expr]) -> None:
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.values.get(node.id, node)


def _in_log_space(source: str, text: str) -> str:
    """Logarithms of a softmax, sigmoid or exp as the words say, followed through names that are assigned once."""
    tree = ast.parse(source)
    assigned = {
        node.targets[0].id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    wanted = [LOGARITHMS[one] + (one,) for one in LOGARITHMS if one in text]
    hits = 0

    class Log(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.expr:
            nonlocal hits
            self.generic_visit(node)
            name = _function(node)
            if name not in ("log", "log1p") or not isinstance(node.func, ast.Attribute):
                return node
            x: ast.expr = node.args[0] if ast.unparse(node.func.value) == "torch" else node.func.value
            for function, instead, words in wanted:
                inner = _argument_of(
                    x, function, assigned, complement="1 -" in words, plus="1 +" in words and name == "log"
                )
                if inner is None or ("1 +" in words) != (name == "log1p" or "1 +" in ast.unparse(x)):
                    continue
                hits += 1
                argument, rest = inner
                if instead == "-":
                    return ast.parse(f"torch.nn.functional.logsigmoid(-({ast.unparse(argument)}))", mode="eval").body
                more = "".join(f", {ast.unparse(one)}" for one in rest)
                return ast.parse(f"{instead}({ast.unparse(argument)}{more})", mode="eval").body
            return node

    new = ast.unparse(ast.fix_missing_locations(Log().visit(tree)))
    if not hits:
        raise NotCarriedOutError(text)
    return new


def _argument_of(
    x: ast.expr, function: str, assigned: dict[str, ast.expr], *, complement: bool, plus: bool
) -> tuple[ast.expr, list[ast.AST]] | None:
    """What the function was given whose result is `x`, and its other arguments."""
    if isinstance(x, ast.Name):
        return (
            None
            if x.id not in assigned
            else _argument_of(assigned[x.id], function, assigned, complement=complement, plus=plus)
        )
    if isinstance(x, ast.BinOp) and (complement or plus):
        sides = [one for one in (x.left, x.right) if not isinstance(one, ast.Constant)]
        return _argument_of(sides[0], function, assigned, complement=False, plus=False) if len(sides) == 1 else None
    if not isinstance(x, ast.Call) or _function(x) != function or complement or not isinstance(x.func, ast.Attribute):
        return None
    given = list(x.args) if ast.unparse(x.func.value) in ("torch", "F") else [x.func.value, *x.args]
    return given[0], [*given[1:], *x.keywords]


def _wide(source: str, lines: list[int], *, modules: bool) -> str:
    """Those lines in float32: every operand of a function as `.float()`; with modules, under no autocast."""

    class Float(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.expr:
            self.generic_visit(node)
            if node.lineno not in lines:
                return node
            function = ast.unparse(node.func)
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            method = owner is not None and hasattr(Tensor, node.func.attr)  # type: ignore[attr-defined]
            if function.startswith(_FUNCTIONS) or method or modules:
                node.args = [_floated(one) for one in node.args]
            if method and owner is not None and not function.startswith(_FUNCTIONS):
                node.func.value = _floated(owner)  # type: ignore[attr-defined]
            return node

        def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
            self.generic_visit(node)
            if node.lineno in lines:
                node.left, node.right = _floated(node.left), _floated(node.right)
            return node

        def visit_Return(self, node: ast.Return) -> ast.stmt:
            return self._without_autocast(node)

        def visit_Assign(self, node: ast.Assign) -> ast.stmt:
            return self._without_autocast(node)

        def _without_autocast(self, node: ast.stmt) -> ast.stmt:
            self.generic_visit(node)
            if node.lineno not in lines:
                return node
            block = ast.parse("with torch.autocast('cpu', enabled=False): pass").body[0]
            assert isinstance(block, ast.With)
            block.body = [node]
            return block

    return ast.unparse(ast.fix_missing_locations(Float().visit(ast.parse(source))))


_FUNCTIONS = ("torch.", "F.", "nn.functional.")


def _floated(node: ast.expr) -> ast.expr:
    return ast.Call(ast.Name("_carried_out_float", ast.Load()), [node], [])


def _float(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16) else value


for _name, _value in {"_carried_out_float": _float, "nantrap": nantrap, "math": math}.items():
    setattr(builtins, _name, _value)  # what an edited program would import


_PARTS = {
    "a tenth": 10, "a hundredth": 100, "a thousandth": 1_000, "a ten-thousandth": 10_000, "a millionth": 1_000_000,
    "a hundred-millionth": 100_000_000,
}  # fmt: skip


def _described(text: str, incident: Incident) -> Edit | None:
    """The change that words describe."""
    edit = Edit("")
    if text.startswith("every operation in float32"):
        edit.prepare.append(lambda names: names["model"].float())
        edit.batch = _all(_float)
        edit.around.append(lambda: _autocast_in(torch.float32))
        return edit
    if text == "bfloat16 instead of float16":
        edit.prepare.append(lambda names: _each_float16(names["model"]))
        edit.batch = _all(lambda x: x.bfloat16() if isinstance(x, Tensor) and x.dtype == torch.float16 else x)
        edit.around.append(lambda: _autocast_in(torch.bfloat16))
        return edit
    if text.startswith("the batch without sample"):
        left_out = {int(number) for number in re.findall(r"\d+", text)}
        if "other" in text:
            raise NotCarriedOutError(text)
        edit.batch = _all(
            lambda x: x[[i for i in range(len(x)) if i not in left_out]] if isinstance(x, Tensor) and x.dim() else x
        )
        edit.at_the_step = True
        return edit
    if (found := re.fullmatch(r"(\S+)\.clamp\((.*)\)", text)) and not text.startswith("torch"):
        bounds = eval(f"dict({found[2]})" if "=" in found[2] else f"dict(min={found[2].replace(', ', ', max=')})")
        edit.batch = _at(found[1], lambda x: x.clamp(**bounds))
        return edit
    if found := re.fullmatch(r"targets clamped to \[0, (1\]|inf\))(.*)", text):
        high = 1.0 if found[1] == "1]" else None
        edit.batch = lambda batch: _last(batch, lambda x: x.clamp(0, high))
        return edit
    if found := re.fullmatch(r"keep (\S+) in float32", text):
        path, _, last = found[1].rpartition(".")
        edit.prepare.append(
            lambda names: setattr(
                names["model"].get_submodule(path), last, getattr(names["model"].get_submodule(path), last).float()
            )
        )
        return edit
    if text == "reset it: optimizer.state.clear()":
        edit.before_update.append(lambda names: names["optimizer"].state.clear())
        edit.at_the_step = True
        return edit
    if found := re.fullmatch(r"eps=(\S+) in every parameter group", text):
        eps = float(found[1])
        edit.prepare.append(lambda names: [group.update(eps=eps) for group in names["optimizer"].param_groups])
        return edit
    if "eps=1e-05" in text or "eps=1e-5" in text:
        edit.prepare.append(
            lambda names: [vars(m).update(eps=1e-5) for m in names["model"].modules() if "eps" in vars(m)]
        )
        return edit
    if " divided by " in text:
        gains = {name: float(gain) for name, gain in re.findall(r"(\S+) divided by ([\d.e+]+)", text)}

        def rescale(names: dict[str, Any]) -> None:
            for name, gain in gains.items():
                names["model"].get_parameter(name).data.div_(gain)

        edit.prepare.append(rescale)
        return edit
    if text.startswith("weights, gradients and optimizer state in float32"):
        edit.prepare.append(lambda names: names["model"].float())
        edit.batch = _all(_float)
        return edit
    part = next((part for word, part in _PARTS.items() if text.startswith(f"{word} of the learning rate")), None)
    if part is not None or text.startswith(("a learning rate of at most", "the learning rate before")):
        rate = re.search(r"(?:before the jump, |at most )([\d.e+-]+)", text)

        def lower(names: dict[str, Any]) -> None:
            for group in names["optimizer"].param_groups:
                if part:
                    group.update({key: group[key] / part for key in _RATES & group.keys()})
                else:
                    group["lr"] = min(float(rate[1]), group["lr"]) if rate else 0.0
            for schedule in _schedules_of(names["optimizer"]) if part else ():
                schedule.base_lrs = [base / part for base in schedule.base_lrs]

        (edit.prepare if part else edit.before_update).append(lower)
        return edit
    return None


_RATES = {"lr", "initial_lr", "max_lr", "min_lr"}


def _schedules_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """The schedules that a program made for an optimizer: it keeps them in hooks and closures."""
    kind = torch.optim.lr_scheduler.LRScheduler
    # `isinstance` asks a weak proxy for its `__class__`, which raises once what it stands for is gone.
    found = [each for each in gc.get_objects() if issubclass(type(each), kind)]
    return [each for each in found if each.optimizer is optimizer]


def _usual(x: Any) -> Any:
    """A tensor with values above 1,000 over its largest one."""
    large = isinstance(x, Tensor) and x.is_floating_point() and bool(x.numel()) and float(x.abs().max()) > 1e3
    return x / x.abs().max() if large else x


def _each_float16(model: nn.Module) -> None:
    if any(p.dtype == torch.float16 for p in model.parameters()):
        model.bfloat16()


@contextlib.contextmanager
def _autocast_in(other: torch.dtype) -> Iterator[None]:
    """Where the program asks for autocast in half precision, another dtype is meant; float32: none."""
    kept = torch.autocast.__init__

    def init(self: Any, device_type: str, dtype: Any = None, enabled: bool = True, **kwargs: Any) -> None:
        narrow = (torch.float16,) if other == torch.bfloat16 else (torch.float16, torch.bfloat16, torch.float32, None)
        if dtype in narrow:
            dtype, enabled = torch.bfloat16, enabled and other == torch.bfloat16
        kept(self, device_type, dtype, enabled, **kwargs)

    torch.autocast.__init__ = init  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.autocast.__init__ = kept  # type: ignore[method-assign]


def _all(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda batch: torch.utils._pytree.tree_map(change, batch)


def _at(path: str, change: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
    """A batch with the tensor at a path changed: `batch[1]`, `y`."""

    def changed(batch: Any) -> Any:
        if isinstance(batch, Tensor):
            return change(batch)
        key: Any = int(found[1]) if (found := re.fullmatch(r"batch\[(\d+)\]", path)) else path
        if isinstance(batch, dict):
            return {k: change(v) if k == key else v for k, v in batch.items()}
        return type(batch)(change(v) if i == key else v for i, v in enumerate(batch))

    return changed


def _last(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(batch, dict):
        *_, key = batch
        return {k: change(v) if k == key else v for k, v in batch.items()}
    return (*batch[:-1], change(batch[-1])) if isinstance(batch, (tuple, list)) else change(batch)


Build = Callable[[str], "dict[str, Any]"]
"""Model, optimizer, batches and `loss(batch)` of a program, from its source."""


def is_finite_after(build: Build, edit: Edit, incident: Incident) -> bool:
    """Whether the edited program, in a plain loop, is finite up to the step that failed, and after it."""
    with contextlib.ExitStack() as stack:
        for around in edit.around:
            stack.enter_context(around())
        torch.manual_seed(0)
        names = build(edit.source)
        model, optimizer = names["model"], names["optimizer"]
        for step, batch in enumerate(names["batches"]):
            now = step == incident.step or not edit.at_the_step
            for prepare in edit.prepare if step == 0 else ():
                prepare(names)
            optimizer.zero_grad()
            loss = names["loss"](edit.batch(batch) if now else batch)
            if isinstance(loss, dict):
                loss = torch.stack(list(loss.values())).sum()
            loss.backward()
            gradients = [p.grad.to_dense() for p in model.parameters() if p.grad is not None]
            for change in edit.before_update if now else ():
                change(names)
            finite = bool(loss.isfinite()) and all(bool(g.isfinite().all()) for g in gradients)
            optimizer.step()
            finite = finite and all(bool(p.isfinite().all()) for p in model.parameters())
            if step == incident.step or not finite:
                return finite
    return True
