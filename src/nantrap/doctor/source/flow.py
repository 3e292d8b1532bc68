"""The events of a training step in the order in which they happen: backward, unscale, clip, step, zero_grad, tests.

Calls of functions of the same file are followed, so that a loop whose step is in another function reads like one
function. Two events are on one path unless they are in different arms of the same condition, or a `continue` is between
them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from nantrap.doctor.configuration.python_file import OPTIMIZERS
from nantrap.doctor.source.expressions import dotted, is_gradient, name_of, receiver_of
from nantrap.doctor.source.module import Function, Module, without_gradients

LoopEventKind = Literal[(
    "backward", "step", "zero_grad", "clip", "unscale", "test", "zeroed", "scaler", "optimizer", "autocast", "load",
    "set_lr",
)]  # fmt: skip
_OPTIMIZER: Final = re.compile(
    r"(^|_|\.)(opt|optim|optimizer|optimiser|optims|optimizers|opts)(_|\d|\[|$)|optim|^opt|opt$|sgd$|adam",
    re.IGNORECASE,
)
_NOT_OPTIMIZER: Final = re.compile(r"sched|lr_|option|prof|env|ema", re.IGNORECASE)
_MANAGED: Final = re.compile(r"accelerator|fabric|engine|strategy|booster", re.IGNORECASE)
_NON_FINITE: Final = frozenset({"isnan", "isinf", "isfinite", "isneginf", "isposinf", "is_nan", "check_nan"})
_NEGATED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {ast.IsNot: ast.Is, ast.NotEq: ast.Eq, ast.NotIn: ast.In}
_ENDS: Final = frozenset({"sys.exit", "exit", "quit", "os._exit", "os.abort"})
_EVENTS: Final[dict[str, LoopEventKind]] = {
    "zero_grad": "zero_grad",
    "clip_grad_norm_": "clip",
    "clip_grad_norm": "clip",
    "clip_grad_value_": "clip",
    "clip_gradients": "clip",
    "dispatch_clip_grad": "clip",
    "unscale_": "unscale",
    "unscale_gradients": "unscale",
    "GradScaler": "scaler",
    "autocast": "autocast",
    "load_state_dict": "load",
}
"""Calls that are an event by their name alone."""
_DEEPEST: Final = 3
END: Final = 1 << 30
"""Behind every position."""


class Around(NamedTuple):
    """What is around a statement: the arms of conditions, the loops, and whether gradients are switched off."""

    arms: tuple[tuple[str, bool], ...] = ()
    loops: tuple[int, ...] = ()
    silent: bool = False

    def in_arm(self, test: str, *, holds: bool) -> Around:
        """This place, inside the arm in which a test holds or does not hold."""
        return self._replace(arms=(*self.arms, (test, holds)))


@dataclass(slots=True, eq=False)
class LoopEvent:
    """Something that happens in a step. `receiver` is the optimizer (step, zero_grad) or the object that is called."""

    kind: LoopEventKind
    node: ast.AST
    line: int
    position: int
    function: Function
    around: Around
    receiver: str = ""
    scaled: bool = False
    managed: bool = False
    end: int = END
    """The last position that can be reached from here in the same pass through the loop."""
    resumes: int = END
    """The first position that is reached again: a `return` skips the rest of a helper, not of its caller."""


@dataclass(slots=True)
class LoopFlow:
    """The events of one function."""

    function: Function
    events: list[LoopEvent] = field(default_factory=list)

    def of(self, *kinds: LoopEventKind) -> list[LoopEvent]:
        """The events of some kinds, in order."""
        return [event for event in self.events if event.kind in kinds and not event.around.silent]

    @property
    def trains(self) -> bool:
        """Whether this is a training function: it calls backward and steps an optimizer."""
        return bool(self.of("backward")) and bool(self.of("step"))


def follows(first: LoopEvent, second: LoopEvent) -> bool:
    """Whether the second event can come after the first in one pass."""
    if not first.position < second.position or first.end < second.position < first.resumes:
        return False
    arms = dict(first.around.arms)
    if any(arms.get(test, arm) != arm for test, arm in second.around.arms):
        return False
    one, other = (_equals(each.around.arms) for each in (first, second))
    return all(one.get(name, value) == value for name, value in other.items())


def _equals(arms: tuple[tuple[str, bool], ...]) -> dict[str, str]:
    """What names must be under some conditions: `phase == "Adam" and scaler` asks for `phase` to be `'Adam'`."""
    found: dict[str, str] = {}
    for test, holds in arms:
        if not holds or "==" not in test:
            continue
        top = ast.parse(test, mode="eval").body
        for each in top.values if isinstance(top, ast.BoolOp) and isinstance(top.op, ast.And) else [top]:
            if isinstance(each, ast.Compare) and isinstance(each.ops[0], ast.Eq) and len(each.ops) == 1:
                right = each.comparators[0]
                if isinstance(right, ast.Constant) and dotted(each.left):
                    found[dotted(each.left)] = repr(right.value)
    return found


def always_with(first: LoopEvent, second: LoopEvent) -> bool:
    """Whether the first event happens whenever the second one does, as far as conditions show it."""
    return set(first.around.arms) <= set(second.around.arms)


def any_between(first: LoopEvent, events: Iterable[LoopEvent], last: LoopEvent) -> bool:
    """Whether one of some events can come between two others."""
    return any(follows(first, each) and follows(each, last) for each in events)


def flow_of(module: Module, function: Function) -> LoopFlow:
    """The events of a function, helpers included. Kept, because many checks ask."""
    found = module.flows.get(id(function))
    if found is None:
        found = _Tracer(module, function).run()
        module.flows[id(function)] = found
    assert isinstance(found, LoopFlow)
    return found


def training_flows(module: Module) -> list[LoopFlow]:
    """The flows of every training function of a file that is not silent."""
    if not ({"backward", "manual_backward"} & module.calls.keys()) or "step" not in module.calls:
        return []
    return [flow for flow in all_flows(module) if flow.trains]


def all_flows(module: Module) -> Iterator[LoopFlow]:
    """The flows of every function of a file that is not silent."""
    for each in module.functions:
        if not each.silent and not isinstance(each.node, ast.Lambda):
            yield flow_of(module, each)


def is_optimizer(module: Module, name: str) -> bool:
    """Whether a name is that of an optimizer."""
    if not name:
        return False
    if name in module.optimizer_names:
        return True
    leaf = name.split("[")[0].rsplit(".", 1)[-1]
    return bool(_OPTIMIZER.search(leaf)) and not _NOT_OPTIMIZER.search(leaf)


def is_scaler(module: Module, name: str) -> bool:
    """Whether a name is that of a GradScaler."""
    return name in module.scaler_names or "scaler" in name.rsplit(".", 1)[-1].lower()


def written(node: ast.AST) -> str:
    """The text of a receiver, `optimizers[0]` included."""
    return dotted(node) or (ast.unparse(node) if isinstance(node, (ast.Subscript, ast.Attribute, ast.Name)) else "")


def tests_finite(node: ast.AST) -> bool:
    """Whether an expression asks if something is NaN or Inf; `loss != loss` asks it too."""
    for each in ast.walk(node):
        match each:
            case ast.Call(func=func) if name_of(func) in _NON_FINITE:
                return True
            case ast.Compare(left=left, ops=[ast.NotEq()], comparators=[right]) if ast.dump(left) == ast.dump(right):
                return True
    return False


def expanded(test: ast.expr, function: Function) -> list[ast.expr]:
    """A condition, and what the names in it were set to: `bad = isnan(loss)`, then `if bad:`."""
    found = [test]
    for each in ast.walk(test):
        if isinstance(each, ast.Name):
            value = function.latest(each.id, test.lineno)
            if value is not None and (isinstance(value, (ast.Call, ast.BoolOp, ast.UnaryOp, ast.Compare))):
                found.append(value)
    return found


def leaves_block(body: list[ast.stmt]) -> bool:
    """Whether a block ends with a jump: nothing behind it in the same pass is reached from inside."""
    for statement in body:
        match statement:
            case ast.Continue() | ast.Break() | ast.Return() | ast.Raise():
                return True
            case ast.Expr(value=ast.Call(func=func)) if dotted(func) in _ENDS:
                return True
            case ast.If(body=one, orelse=[_, *_] as other) if leaves_block(one) and leaves_block(other):
                return True
            case ast.With(body=inner) | ast.AsyncWith(body=inner) if leaves_block(inner):
                return True
    return False


class _Tracer:
    def __init__(self, module: Module, function: Function) -> None:
        self.module = module
        self.flow = LoopFlow(function)
        self.position = 0
        self.active: list[Function] = []

    def run(self) -> LoopFlow:
        self.enter(self.flow.function, Around())
        return self.flow

    def enter(self, function: Function, around: Around) -> None:
        """Follow the body of a function that is called here; a return inside it ends it alone."""
        if function in self.active or len(self.active) > _DEEPEST or isinstance(function.node, ast.Lambda):
            return
        self.active.append(function)
        first = len(self.flow.events)
        is_helper = len(self.active) > 1
        self.block(function.node.body, around._replace(silent=around.silent or (is_helper and function.silent)))
        if is_helper:  # a return ends the helper, not its caller
            for event in self.flow.events[first:]:
                if event.end < END and event.resumes == END:
                    event.resumes = self.position + 1
        self.active.pop()

    def block(self, body: list[ast.stmt], around: Around) -> None:
        for statement in body:
            around = self.statement(statement, around)

    def statement(self, node: ast.stmt, around: Around) -> Around:
        """Trace a statement; returns what is around the next one."""
        if isinstance(node, ast.If):
            return self.condition(node, around)
        if isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            self.expression(node.test if isinstance(node, ast.While) else node.iter, around)
            self.block(node.body, around._replace(loops=(*around.loops, id(node))))
            self.block(node.orelse, around)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                self.expression(item.context_expr, around)
            self.block(node.body, around._replace(silent=around.silent or without_gradients(node)))
        elif isinstance(node, ast.Try):
            self.block(node.body, around)
            for index, handler in enumerate(node.handlers):
                self.leaving(handler.body, around.in_arm(f"except {node.lineno} {index}", holds=False))
            self.block(node.orelse, around)
            self.block(node.finalbody, around)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            pass
        else:
            self.expression(node, around)
            self.gradient_write(node, around)
        return around

    def condition(self, node: ast.If, around: Around) -> Around:
        """Follow both branches of a condition; gives what holds after it, where one branch leaves the block."""
        key, arm = _positive(node.test)
        self.expression(node.test, around)
        if any(tests_finite(each) for each in expanded(node.test, self.active[-1])):
            self.add("test", node, around)
        for body, holds in ((node.body, arm), (node.orelse, not arm)):
            self.leaving(body, around.in_arm(key, holds=holds))
        if leaves_block(node.body) and not leaves_block(node.orelse):
            return around.in_arm(key, holds=not arm)
        return around

    def leaving(self, body: list[ast.stmt], around: Around) -> None:
        """Trace a block that may end with a jump: nothing behind it is reached from inside then."""
        first = len(self.flow.events)
        self.block(body, around)
        if leaves_block(body):
            for event in self.flow.events[first:]:
                event.end = min(event.end, self.position)

    def expression(self, top: ast.AST, around: Around) -> None:
        """The calls of an expression, inner ones first."""
        for node in _calls_inside_out(top):
            self.call(node, around)

    def call(self, node: ast.Call, around: Around) -> None:
        """Note a call that matters to training, or follow it into a function of the module."""
        module = self.module
        func = node.func
        leaf = name_of(func)
        receiver = written(func.value) if isinstance(func, ast.Attribute) else ""
        if leaf in ("backward", "manual_backward"):
            scaled, managed = self.scaled(node)
            self.add("backward", node, around, receiver=receiver, scaled=scaled, managed=managed)
        elif leaf == "step":
            if receiver and is_scaler(module, receiver) and node.args:
                self.add("step", node, around, receiver=written(node.args[0]), scaled=True)
            elif is_optimizer(module, receiver):
                for argument in node.args:  # optimizer.step(closure)
                    for helper in self.helpers(argument):
                        self.enter(helper, around)
                self.add("step", node, around, receiver=receiver)
            elif any(e.kind == "backward" and e.managed and e.receiver == receiver for e in self.flow.events):
                self.add("step", node, around, receiver=receiver, managed=True)
        elif leaf in _EVENTS:
            self.add(_EVENTS[leaf], node, around, receiver=receiver, managed=bool(_MANAGED.search(receiver)))
        elif leaf in OPTIMIZERS or leaf.lower().endswith(("optimizer", "optimizers", "optimiser")):
            self.add("optimizer", node, around)
        else:
            for helper in self.helpers(func):
                self.enter(helper, around)

    def helpers(self, func: ast.AST) -> list[Function]:
        """The function of this file that a call runs, if there is just one of that name."""
        if isinstance(func, ast.Name):
            name = func.id
        elif isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id in ("self", "cls"):
            name = func.attr
        else:
            return []
        found = self.module.by_name.get(name, [])
        if len(found) > 1:
            owner = self.active[-1].owner if self.active else None
            found = [each for each in found if each.owner is owner] or found
        return found if len(found) == 1 else []

    def scaled(self, node: ast.Call) -> tuple[bool, bool]:
        """Whether a backward goes through a scaler, and whether a framework runs it."""
        func = node.func
        if not isinstance(func, ast.Attribute):
            return False, False
        target: ast.AST = func.value
        if isinstance(target, ast.Name):
            function = self.active[-1]
            target = function.latest(target.id, node.lineno) or target
        if isinstance(target, ast.Call) and name_of(target.func) in ("scale", "scale_loss"):
            return True, False
        name = dotted(func.value).lower()
        if "scaled" in name:
            return True, False
        given = bool(node.args) and not isinstance(node.args[0], ast.Constant) and "loss" not in name
        return False, func.attr == "manual_backward" or (given and name not in ("torch.autograd", "autograd"))

    def gradient_write(self, node: ast.stmt, around: Around) -> None:
        """`p.grad = ...`, `p.grad[...] = 0`, `p.grad.zero_()`, and a learning rate that is set by hand."""
        if isinstance(node, (ast.Assign, ast.AugAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Subscript) and _is_lr_key(target.slice):
                    self.add("set_lr", node, around)
                elif is_gradient(target):
                    self.add("zeroed", node, around, receiver=written(target))
        elif isinstance(node, ast.Expr):
            cleared = receiver_of(node.value, "zero_", "fill_", "mul_", "masked_fill_", "copy_")
            if cleared is not None and is_gradient(cleared):
                self.add("zeroed", node, around, receiver=written(cleared))

    def add(
        self,
        kind: LoopEventKind,
        node: ast.AST,
        around: Around,
        *,
        receiver: str = "",
        scaled: bool = False,
        managed: bool = False,
    ) -> None:
        """Note an event with its position, line and the conditions and loops around it."""
        self.position += 1
        line = getattr(node, "lineno", 1)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            line = node.func.end_lineno or line
        self.flow.events.append(
            LoopEvent(kind, node, line, self.position, self.active[-1], around, receiver, scaled, managed)
        )


def _positive(test: ast.expr) -> tuple[str, bool]:
    """A condition without its negation, and whether it was not negated: `x is not None` is `x is None`, False."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        key, arm = _positive(test.operand)
        return key, not arm
    if (
        isinstance(test, ast.Compare)
        and type(test.ops[0]) in _NEGATED
        and len(test.ops) == 1
        and not tests_finite(test)
    ):
        return ast.unparse(ast.Compare(test.left, [_NEGATED[type(test.ops[0])]()], test.comparators)), False
    return ast.unparse(test), True


def _calls_inside_out(node: ast.AST) -> Iterator[ast.Call]:
    """The calls of an expression in the order in which Python makes them."""
    if not isinstance(node, (ast.Lambda, ast.FunctionDef)):
        for child in ast.iter_child_nodes(node):
            yield from _calls_inside_out(child)
        if isinstance(node, ast.Call):
            yield node


def _is_lr_key(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value in ("lr", "initial_lr")
