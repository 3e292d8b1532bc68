"""Statements of the user's compiled again from their source, with every call, literal and write sent through a check.

The checks themselves are `guarded`'s. Here is the rewriting of the syntax tree, and how a function's tree is found.
"""

from __future__ import annotations
import __future__

import ast
import functools
import linecache
import operator
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

CALL, NEW, WRITABLE, CONTEXT, AUGMENTED, OWNER = (
    f"__nantrap_{name}__" for name in ("call", "new", "writable", "context", "augmented", "owner")
)
_OUTER = "__nantrap_outer__"
_FEATURES = functools.reduce(operator.or_, (getattr(__future__, n).compiler_flag for n in __future__.all_feature_names))
_OPERATIONS: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv", ast.Mod: "mod",
    ast.Pow: "pow", ast.MatMult: "matmul", ast.BitOr: "or_", ast.BitAnd: "and_", ast.BitXor: "xor",
}  # fmt: skip

Function = ast.FunctionDef | ast.Lambda
NodeT = TypeVar("NodeT", bound=ast.AST)


class NotRepeatable(BaseException):
    """Code that cannot be run again without side effects, and why. `except Exception` does not catch it."""


def compiled(statements: list[ast.stmt], like: types.CodeType) -> types.CodeType:
    """Statements compiled with the file, the flags and the name of the code `like`."""
    module = ast.fix_missing_locations(ast.Module(statements, type_ignores=[]))
    try:
        code = compile(module, like.co_filename, "exec", flags=like.co_flags & _FEATURES, dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        raise NotRepeatable(f"source that does not compile by itself ({error})") from error
    return _renamed(code, "<module>", _qualified(like))


def compiled_again(function: types.FunctionType, helpers: Mapping[str, Any]) -> Callable[..., Any]:
    """The function with its own name, defaults and closure, compiled from its source with every call checked.

    Args:
        function: of the user's.
        helpers: the checks by the names under which the rewritten code calls them.
    """
    code = function.__code__
    cells = [_content(cell) for cell in function.__closure__ or ()]
    names = {**function.__globals__, **helpers}
    exec(_maker_of(code, code.co_filename), names)
    made = names[_OUTER](*cells)
    original = _qualified(code)
    renamed = types.FunctionType(
        _renamed(made.__code__, made.__code__.co_name, original), names, function.__name__, None, made.__closure__
    )
    renamed.__defaults__, renamed.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return renamed


@functools.lru_cache(maxsize=256)
def _maker_of(code: types.CodeType, filename: str) -> types.CodeType:
    """Code that defines a function which makes the rewritten one from its closure. The same for every failure.

    Args:
        code: of the function.
        filename: its file: code of two files can be equal.
    """
    node = guarded_tree(definition_of(code))
    result: ast.expr
    if isinstance(node, ast.Lambda):
        node.args.defaults, node.args.kw_defaults = _placeholders(node.args)
        body: list[ast.stmt] = [ast.Return(node)]
    else:
        node.decorator_list, node.returns = [], None
        for argument in ast.walk(node.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        node.args.defaults, node.args.kw_defaults = _placeholders(node.args)
        result = ast.Name(node.name, ast.Load())
        body = [node, ast.Return(result)]
    arguments = ast.arguments(
        posonlyargs=[], args=[ast.arg(n) for n in code.co_freevars], kwonlyargs=[], kw_defaults=[], defaults=[]
    )
    outer = ast.copy_location(ast.FunctionDef(_OUTER, arguments, body, []), node)
    if sys.version_info >= (3, 12):
        outer.type_params = []
    return compiled([outer], code)


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        raise NotRepeatable("a name that nothing was assigned to") from None


def body_of(code: types.CodeType) -> list[ast.stmt]:
    """The statements of a function, or of a module; none of an expression."""
    tree: Any = tree_of(code.co_filename) if code.co_name == "<module>" else definition_of(code)
    return tree.body if isinstance(tree.body, list) else []


def definition_of(code: types.CodeType) -> Function:
    """The source of a function."""
    found = _functions(tree_of(code.co_filename)).get((code.co_name, code.co_firstlineno), [])
    if len(found) != 1:
        raise NotRepeatable(f"no source for {code.co_name}")
    return found[0]


@functools.lru_cache(maxsize=64)
def _functions(tree: ast.Module) -> dict[tuple[str, int], list[Function]]:
    """The functions of a file by name and first line, which is that of the first decorator."""
    found: dict[tuple[str, int], list[Function]] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            found.setdefault((getattr(node, "name", "<lambda>"), first), []).append(node)
    return found


@functools.lru_cache(maxsize=64)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def tree_of(filename: str) -> ast.Module:
    """The parsed source of a file. Not to be changed: it is kept."""
    try:
        return _parsed("".join(linecache.getlines(filename)))
    except (SyntaxError, ValueError) as error:  # a notebook cell with magics, a generated file
        raise NotRepeatable(f"no source for {filename}") from error


def guarded_tree(node: NodeT) -> NodeT:
    """A copy in which every call is made through `Guarded`."""
    changed: NodeT = _Guarding().visit(_copied(node))
    return changed


def _copied(node: Any) -> Any:
    """A copy of a syntax tree: its fields and positions alone.

    Other tools (IPython's tracebacks) hang their own attributes on nodes, and all trees of a process share the node of
    `Load`. A deep copy follows such an attribute into the trees of other files.
    """
    if isinstance(node, list):
        return [_copied(item) for item in node]
    if not isinstance(node, ast.AST):
        return node
    fields = {name: _copied(value) for name, value in ast.iter_fields(node)}
    return ast.copy_location(type(node)(**fields), node)


class _Guarding(ast.NodeTransformer):
    def _through(self, helper: str, node: Any, *arguments: ast.expr) -> ast.Call:
        call = ast.Call(ast.Name(helper, ast.Load()), list(arguments), [])
        return ast.copy_location(call, node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        call = ast.Call(ast.Name(CALL, ast.Load()), [node.func, *node.args], node.keywords)
        return ast.copy_location(call, node)

    def _literal(self, node: Any) -> ast.AST:
        self.generic_visit(node)
        if isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
            return node  # type: ignore[no-any-return]
        return self._through(NEW, node, node)

    visit_List = visit_Dict = visit_Set = visit_ListComp = visit_DictComp = visit_SetComp = _literal

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            node.value = self._through(WRITABLE, node, node.value)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.ctx, ast.Load):
            node.value = self._through(OWNER, node, node.value, ast.Constant(node.attr))
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        name = _OPERATIONS.get(type(node.op))
        if not isinstance(node.target, ast.Name) or name is None:
            return node
        target = ast.copy_location(ast.Name(node.target.id, ast.Load()), node)
        value = self._through(AUGMENTED, node, ast.Constant(name), target, node.value)
        return ast.copy_location(ast.Assign([node.target], value), node)

    def visit_With(self, node: ast.With) -> ast.AST:
        self.generic_visit(node)
        for item in node.items:
            item.context_expr = self._through(CONTEXT, item.context_expr, item.context_expr)
        return node

    def _impossible(self, node: ast.AST) -> ast.AST:
        raise NotRepeatable(f"a statement of the kind {type(node).__name__}")

    visit_Global = visit_Nonlocal = visit_ClassDef = visit_Yield = visit_YieldFrom = visit_Await = _impossible
    visit_AsyncFor = visit_AsyncWith = visit_AsyncFunctionDef = _impossible


def _placeholders(arguments: ast.arguments) -> tuple[list[ast.expr], list[ast.expr | None]]:
    """Defaults that are put in place afterwards: the original ones were computed when the function was defined."""
    return (
        [ast.Constant(None) for _ in arguments.defaults],
        [None if default is None else ast.Constant(None) for default in arguments.kw_defaults],
    )


def _qualified(code: types.CodeType) -> str:
    return code.co_qualname if sys.version_info >= (3, 11) else code.co_name


def _renamed(code: types.CodeType, old: str, new: str) -> types.CodeType:
    """The code under the name that it has in the user's program, and what is defined inside it too."""
    inner = tuple(_renamed(each, old, new) if isinstance(each, types.CodeType) else each for each in code.co_consts)
    if sys.version_info < (3, 11):
        return code.replace(co_consts=inner, co_name=new if code.co_name == old else code.co_name)
    else:  # noqa: RET505 - mypy takes the version's branch only in this form
        name = code.co_qualname.removeprefix(f"{_OUTER}.<locals>.")
        name = new if name == old else new + name.removeprefix(old) if name.startswith(f"{old}.") else name
        simple = new.rpartition(".")[2] if code.co_name == old else code.co_name
        return code.replace(co_consts=inner, co_qualname=name, co_name=simple)
