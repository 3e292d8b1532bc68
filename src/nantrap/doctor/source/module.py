"""A Python file as the source checks see it: names resolved through its imports, calls by name, functions, assignments.

One walk over the syntax tree fills the lists; the checks then look only at the calls they care about.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, NamedTuple

from nantrap.doctor.configuration.python_file import OPTIMIZERS, PythonSettings
from nantrap.doctor.configuration.setting import UNKNOWN
from nantrap.doctor.source.expressions import OPERATORS, dotted, evaluate, name_of

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.Module
_NO_GRAD: Final = frozenset({"no_grad", "inference_mode"})
_LAYERS: Final = {"Softmax": "softmax", "Sigmoid": "sigmoid", "LogSoftmax": "log_softmax", "Softmax2d": "softmax"}
_LEAVES: Final = frozenset(
    {ast.Name, ast.Constant, ast.Load, ast.Store, ast.Add, ast.Sub, ast.Mult, ast.Eq, ast.Div, ast.Pow}
)
_OTHERS: Final = frozenset({"jax", "flax", "tensorflow", "keras", "paddle", "mindspore", "mlx", "tinygrad"})
_TEST_FILE: Final = re.compile(r"(^test_.*|.*_test|conftest|^(bench|profil).*|.*_(bench|benchmark|profile))\.py$")
_TEST_FOLDERS: Final = frozenset({"test", "tests", "testing", "unittests", "unit_tests"})


@dataclass(slots=True, eq=False)
class Function:
    """A function, or the body of the module. `assigned` has the values given to each name, in order of lines."""

    module: Module
    node: FunctionNode
    name: str
    owner: ast.ClassDef | None = None
    parent: Function | None = None
    silent: bool = False
    assigned: dict[str, list[tuple[int, ast.expr]]] = field(default_factory=dict)
    known: dict[str, Any] | None = None
    """Values of names inside it, computed when first needed."""

    def latest(self, name: str, line: int) -> ast.expr | None:
        """What was last assigned to a name above a line, or None."""
        found = None
        for at, value in self.assigned.get(name, ()):
            if at < line:
                found = value
        return found

    def given(self, node: ast.AST | None, line: int = 0) -> ast.expr | None:
        """What was last assigned to the name that an expression is, above a line or above itself; None without one."""
        return None if node is None else self.latest(dotted(node), line or getattr(node, "lineno", 0))

    def followed(self, node: ast.expr, line: int, steps: int = 3) -> ast.expr:
        """What a name was assigned, a few steps back."""
        value = self.given(node, line) if steps else None
        return node if value is None else self.followed(value, getattr(value, "lineno", line), steps - 1)

    def value(self, node: ast.AST | None) -> Any:
        """The constant value of an expression inside it, or `UNKNOWN`."""
        return self.module.value(node, self)

    @property
    def title(self) -> str:
        """The name of its class and its own, in lower case."""
        return f"{self.owner.name if self.owner is not None else ''} {self.name}".lower()

    @property
    def parameters(self) -> set[str]:
        """The names of the arguments."""
        if isinstance(self.node, ast.Module):
            return set()
        given = self.node.args
        return {each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs)}


@dataclass(slots=True, eq=False)
class CodePlace:
    """Where a node is: its function, its statement, and what is around it."""

    function: Function
    statement: ast.stmt
    silent: bool
    conditional: bool
    loops: tuple[ast.AST, ...]


@dataclass(slots=True, eq=False)
class Module:
    """One Python file."""

    file: str
    tree: ast.Module
    text: str
    settings: PythonSettings = field(init=False)
    """What the file sets; read when the walk is over."""
    imports: dict[str, str] = field(default_factory=dict)
    functions: list[Function] = field(default_factory=list)
    by_name: dict[str, list[Function]] = field(default_factory=dict)
    calls: dict[str, list[tuple[ast.Call, CodePlace]]] = field(default_factory=dict)
    operators: dict[str, list[tuple[ast.BinOp, CodePlace]]] = field(default_factory=dict)
    """The powers and divisions that are written with an operator, by the name of the operation."""
    conditions: list[tuple[ast.If, CodePlace]] = field(default_factory=list)
    dicts: list[ast.Dict] = field(default_factory=list)
    classes: list[ast.ClassDef] = field(default_factory=list)
    layers: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, list[tuple[int, ast.expr]]] = field(default_factory=dict)
    buffers: set[str] = field(default_factory=set)
    """Attributes that `register_buffer` makes: no gradient reaches them."""
    optimizer_names: set[str] = field(default_factory=set)
    scaler_names: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    folders: frozenset[str] = frozenset()
    """The folders around the file, below the path that was asked for."""
    flows: dict[int, Any] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)
    """What a check has found out and another one asks for."""

    def resolve(self, node: ast.AST) -> str:
        """`torch.nn.functional.softmax` for `F.softmax`; nothing if the node is not a chain of names."""
        name = dotted(node)
        head, dot, rest = name.partition(".")
        target = self.imports.get(head)
        return name if target is None else target + dot + rest

    def sites(self, *names: str) -> Iterator[tuple[ast.Call, CodePlace]]:
        """Every call whose last name is one of these, outside code that is not trained."""
        for name in names:
            for call, place in self.calls.get(name, ()):
                if not place.silent:
                    yield call, place

    def value(self, node: ast.AST | None, function: Function | None = None) -> Any:
        """The constant value of an expression, or `UNKNOWN`."""
        if node is None:
            return UNKNOWN
        if isinstance(node, ast.Constant):
            return node.value
        found = evaluate(node, self._known(function))
        if found is UNKNOWN and isinstance(node, ast.Attribute):
            given = self.attributes.get(dotted(node), ())
            if len(given) == 1:
                return evaluate(given[0][1], self._known(self._constructor(given[0][0])))
        return found

    def _known(self, function: Function | None) -> dict[str, Any]:
        """What is known by name inside a function: its own values, and those of the functions around it."""
        if function is None or isinstance(function.node, (ast.Module, ast.Lambda)):
            function = next((each for each in self.functions if isinstance(each.node, ast.Module)), None)
            assert function is not None
            if function.known is None:
                function.known = self.settings.known()
            return function.known
        if function.known is None:
            function.known = self.settings.known(function)
            if function.parent is not None and not isinstance(function.parent.node, ast.Module):
                function.known = {**self._known(function.parent), **function.known}
        return function.known

    def _constructor(self, line: int) -> Function | None:
        around = [
            each
            for each in self.functions
            if isinstance(each.node, ast.FunctionDef) and each.node.lineno <= line <= (each.node.end_lineno or 0)
        ]
        return around[-1] if around else None  # functions are in the order of their lines, inner ones later

    @property
    def is_foreign(self) -> bool:
        """Whether the file is written for another library than PyTorch."""
        heads = {target.split(".")[0] for target in self.imports.values()}
        return not any(head.startswith("torch") for head in heads) and not _OTHERS.isdisjoint(heads)

    @property
    def is_demonstration(self) -> bool:
        """Whether the file trains nothing, but shows what it defines under `__main__`."""
        return "__main__" in self.text and {"backward", "fit", "train", "main"}.isdisjoint(self.calls)

    @property
    def clips(self) -> bool:
        """Whether gradients are clipped anywhere in the file."""
        return any("clip_grad" in name or name == "clip_gradients" for name in self.calls)

    @property
    def scales(self) -> bool:
        """Whether a GradScaler is used in the file."""
        return "GradScaler" in self.calls or "GradScaler" in self.text or bool(self.scaler_names)


def read_module(text: str, *, file: str, root: str = "", extra: Mapping[str, str] | None = None) -> Module:
    """Parse a file and walk over it once. Raises SyntaxError, ValueError or RecursionError like `ast.parse`."""
    tree = ast.parse(text)
    module = Module(file, tree, text)
    module.lines = text.splitlines()
    module.folders = frozenset(parts_inside(file, root)[:-1])
    _Walk(module).run()
    _silence(module)
    module.settings = PythonSettings(module, extra=extra)
    return module


def without_gradients(node: ast.With | ast.AsyncWith | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a with-block or a decorated function runs under `no_grad` or `inference_mode`."""
    if isinstance(node, (ast.With, ast.AsyncWith)):
        opened = [item.context_expr for item in node.items]
    else:
        opened = node.decorator_list
    return any(name_of(each.func if isinstance(each, ast.Call) else each) in _NO_GRAD for each in opened)


def _silence(module: Module) -> None:
    """Mark private functions that are called only without gradients, and what is in them, as silent."""
    found = {
        id(each)
        for name, functions in module.by_name.items()
        if name.startswith("_") and not name.startswith("__")
        if (sites := module.calls.get(name)) and all(place.silent for _, place in sites)
        for each in functions
    }
    if not found:
        return
    for each in module.functions:
        each.silent = each.silent or id(each) in found
    places = [place for sites in module.calls.values() for _, place in sites]
    places += [place for _, place in (*chain(*module.operators.values()), *module.conditions)]
    for place in places:
        place.silent = place.silent or id(place.function) in found


def is_test(file: str, root: str) -> bool:
    """Test files, files in a folder of tests below the given path, and scripts that measure time."""
    if _TEST_FILE.match(os.path.basename(file)):
        return True
    return any(part in _TEST_FOLDERS for part in parts_inside(file, root)[:-1])


def parts_inside(file: str, root: str) -> list[str]:
    """The parts of a path below the path that was asked for."""
    inside = os.path.relpath(file, root) if root and root != file else os.path.basename(file)
    return inside.split(os.sep)


class _Around(NamedTuple):
    """What is around a statement: its function and class, conditions and loops, and whether it is silent."""

    function: Function
    owner: ast.ClassDef | None = None
    silent: bool = False
    conditional: bool = False
    loops: tuple[ast.AST, ...] = ()


class _Walk:
    """The one walk."""

    def __init__(self, module: Module) -> None:
        self.module = module

    def run(self) -> None:
        module = self.module
        top = Function(module, module.tree, "")
        module.functions.append(top)
        self.block(module.tree.body, _Around(top))

    def block(self, statements: list[ast.stmt], around: _Around) -> None:
        """Read statements one after the other."""
        for statement in statements:
            self.statement(statement, around)

    def statement(self, node: ast.stmt, around: _Around) -> None:
        """Read one statement: note what it defines, imports, assigns and calls, and enter its blocks."""
        module = self.module
        kind = type(node)
        if kind is ast.Import or kind is ast.ImportFrom:
            self.imported(node)
            return
        if kind is ast.FunctionDef or kind is ast.AsyncFunctionDef:
            self.function(node, around.function, around.owner)  # type: ignore[arg-type]
            return
        if isinstance(node, ast.ClassDef):
            module.classes.append(node)
            silent = around.silent or node.name.startswith("Test")
            self.block(node.body, around._replace(owner=node, silent=silent, loops=()))
            return
        place = CodePlace(around.function, node, around.silent, around.conditional, around.loops)
        if isinstance(node, ast.If):
            module.conditions.append((node, place))
            self.expression(node.test, place)
            main = isinstance(node.test, ast.Compare) and dotted(node.test.left) == "__name__"
            inside = around if main else around._replace(conditional=True)
            self.block(node.body, inside)
            self.block(node.orelse, inside)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.While)):
            self.expression(node.test if isinstance(node, ast.While) else node.iter, place)
            self.block(node.body, around._replace(loops=(*around.loops, node)))
            self.block(node.orelse, around)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                self.expression(item.context_expr, place)
            self.block(node.body, around._replace(silent=around.silent or without_gradients(node)))
        elif isinstance(node, ast.Try):
            self.block(node.body, around)
            for handler in node.handlers:
                self.block(handler.body, around._replace(conditional=True))
            self.block(node.orelse, around)
            self.block(node.finalbody, around)
        elif kind is getattr(ast, "Match", None):
            self.expression(node.subject, place)  # type: ignore[attr-defined]
            for case in node.cases:  # type: ignore[attr-defined]
                self.block(case.body, around._replace(conditional=True))
        else:
            self.assignment(node, around.function)
            self.expression(node, place)

    def function(self, node: ast.FunctionDef, parent: Function, owner: ast.ClassDef | None) -> None:
        """Note a function and read its body; tests and code without gradients are marked silent."""
        module = self.module
        silent = node.name.startswith("test_") or (owner is not None and owner.name.startswith("Test"))
        silent = silent or (parent.silent and not isinstance(parent.node, ast.Module))
        silent = silent or without_gradients(node)
        function = Function(module, node, node.name, owner, parent, silent)
        module.functions.append(function)
        module.by_name.setdefault(node.name, []).append(function)
        for decorator in node.decorator_list:
            self.expression(decorator, CodePlace(parent, node, silent, False, ()))
        self.block(node.body, _Around(function, silent=silent))

    def imported(self, node: ast.AST) -> None:
        """Note what each imported name is."""
        imports = self.module.imports
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.asname:
                    imports[name.asname] = name.name
                else:
                    head = name.name.split(".")[0]
                    imports.setdefault(head, head)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for name in node.names:
                imports[name.asname or name.name] = f"{node.module}.{name.name}"

    def assignment(self, node: ast.stmt, function: Function) -> None:
        """Note what a statement assigns; `x += y` as `x + y`."""
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self.assign(target, node.value, node.lineno, function)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self.assign(node.target, node.value, node.lineno, function)
        elif isinstance(node, ast.AugAssign):
            name = dotted(node.target)
            if name:
                both = ast.copy_location(ast.BinOp(node.target, node.op, node.value), node.value)
                function.assigned.setdefault(name, []).append((node.lineno, both))

    def assign(self, target: ast.expr, value: ast.expr, line: int, function: Function) -> None:
        """Note the value of a name, or of each name of a tuple."""
        if isinstance(target, (ast.Tuple, ast.List)):
            if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts):
                for one, other in zip(target.elts, value.elts, strict=True):
                    self.assign(one, other, line, function)
            else:
                for one in target.elts:
                    name = dotted(one)
                    if name:
                        function.assigned.setdefault(name, []).append((line, value))
            return
        name = dotted(target)
        if not name:
            return
        module = self.module
        function.assigned.setdefault(name, []).append((line, value))
        if name.startswith("self."):
            module.attributes.setdefault(name, []).append((line, value))
        if isinstance(value, ast.Call):
            leaf = name_of(value.func)
            if leaf in OPTIMIZERS:
                module.optimizer_names.add(name)
            elif leaf == "GradScaler":
                module.scaler_names.add(name)
            elif leaf in _LAYERS:
                module.layers[name] = _LAYERS[leaf]

    def expression(self, top: ast.AST, place: CodePlace) -> None:
        """Note the calls, powers, divisions and literals of an expression."""
        module = self.module
        stack = [top]
        while stack:
            node = stack.pop()
            kind = type(node)
            if kind is ast.Call:
                func = node.func  # type: ignore[attr-defined]
                leaf = func.attr if type(func) is ast.Attribute else func.id if type(func) is ast.Name else ""
                module.calls.setdefault(leaf, []).append((node, place))  # type: ignore[arg-type]
                if leaf == "register_buffer" and node.args and isinstance(node.args[0], ast.Constant):  # type: ignore[attr-defined]
                    module.buffers.add(f"self.{node.args[0].value!s}")  # type: ignore[attr-defined]
            elif kind is ast.BinOp:
                if type(node.op) in (ast.Pow, ast.Div):  # type: ignore[attr-defined]
                    module.operators.setdefault(OPERATORS[type(node.op)], []).append((node, place))  # type: ignore[attr-defined, arg-type]
            elif kind is ast.Dict:
                module.dicts.append(node)  # type: ignore[arg-type]
            elif kind is ast.Lambda:
                inner = Function(module, node, "<lambda>", None, place.function, place.silent)  # type: ignore[arg-type]
                inner.assigned = place.function.assigned
                module.functions.append(inner)
            # `ast.iter_child_nodes`, faster. Not `__dict__`: IPython's tracebacks write a `parent` into nodes that all
            # trees share, such as the minus sign, and a walk along it would never end
            for name in node._fields:
                value = getattr(node, name, None)
                if value.__class__ is list:
                    stack.extend(each for each in value if isinstance(each, ast.AST))
                elif isinstance(value, ast.AST) and value.__class__ not in _LEAVES:
                    stack.append(value)
