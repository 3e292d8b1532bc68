"""Which line of the loss function was it? In the two-line form no frame of it is left when a failure is diagnosed.

But the caller of the guard is still on the stack, and the functions it calls are known by name. If exactly one
expression there can have made the guilty operation, it is that one; the source is then marked as inferred. If several
in one statement can, the statement is named. If several in different statements can, none is.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import linecache
import types
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from torch import nn

from nantrap.incident import Source
from nantrap.locate.source import is_installed, is_user_code, qualified_name
from nantrap.locate.torch_private import children_of
from nantrap.locate.twoline.caller import Frame, callers, loops_around, names_in
from nantrap.locate.twoline.rewriting import NotRepeatable, tree_of
from nantrap.locate.wrapping import forward_code

_LEVELS = 3
_MOST_FUNCTIONS = 64
_OUTWARDS = 4
"""How many callers are searched, from the inside: a helper that checks the loss did not compute it."""

_SPELLINGS: dict[str, frozenset[str]] = {
    name: frozenset(words.split())
    for name, words in {
        "pow": "pow square",
        "div": "div divide true_divide normalize",
        "add": "add",
        "sub": "sub subtract",
        "mul": "mul multiply",
        "mm": "mm matmul linear einsum",
        "bmm": "bmm matmul einsum",
        "addmm": "addmm linear",
        "_softmax": "softmax",
        "_log_softmax": "log_softmax cross_entropy CrossEntropyLoss",
        "nll_loss_forward": "nll_loss cross_entropy NLLLoss CrossEntropyLoss",
        "nll_loss2d_forward": "nll_loss cross_entropy NLLLoss CrossEntropyLoss",
        "mse_loss": "mse_loss MSELoss",
        "binary_cross_entropy": "binary_cross_entropy BCELoss",
        "binary_cross_entropy_with_logits": "binary_cross_entropy_with_logits BCEWithLogitsLoss",
        "smooth_l1_loss": "smooth_l1_loss SmoothL1Loss",
        "huber_loss": "huber_loss HuberLoss",
        "_ctc_loss": "ctc_loss CTCLoss",
        "linalg_vector_norm": "norm vector_norm normalize cosine_similarity",
        "var": "var var_mean",
        "std": "std std_mean",
        "_to_copy": "to half bfloat16 float double type",
        "_linalg_svd": "svd svdvals",
        "_linalg_eigh": "eigh eigvalsh",
        "_cdist_forward": "cdist",
        "index": "index",
    }.items()
}
"""How an operation is written as a call, where that is not simply its name."""

_OPERATORS: dict[str, type[ast.operator]] = {
    "div": ast.Div,
    "reciprocal": ast.Div,
    "pow": ast.Pow,
    "mul": ast.Mult,
    "add": ast.Add,
    "sub": ast.Sub,
    "rsub": ast.Sub,
    "mm": ast.MatMult,
    "bmm": ast.MatMult,
}


class _Unit(NamedTuple):
    """Code that ran, and how its names are looked up."""

    code: types.CodeType
    look_up: Callable[[ast.expr], Any]


class Inferred(NamedTuple):
    """A line, and the part of the model whose forward contains it, if there is one."""

    source: Source
    module: str | None


def infer_source(operation: str, root: nn.Module, replayed: Collection[nn.Module] = ()) -> Inferred | None:
    """The only expression in the calling code that can have made `operation`, or `None`.

    Args:
        operation: its aten name without the prefix (`log`, `nll_loss_forward`).
        root: the model; its parts may be called by the loss function too (`model.criterion(out, y)`).
        replayed: modules whose calls were run again under a trace: their code cannot be the cause.
    """
    parts = _Parts.of(root, {id(root), *map(id, replayed)})
    installed: tuple[list[_Candidate], Frame] | None = None
    for frame in _searched():
        found: dict[tuple[str, int, int], _Candidate] = {}
        for unit in _units(frame, parts):
            for expression in _expressions(unit.code):
                if _matches(expression, operation, unit):
                    place = unit.code.co_filename, expression.lineno, expression.col_offset
                    found[place] = _Candidate(unit.code, expression)
        if not found:
            continue
        # a framework that is given the loss may divide it once more; the loop that computed it is further out
        if installed is None and is_installed(frame.f_code):
            installed = list(found.values()), frame
        elif installed is None or _loop_around(frame):
            own = [each for each in found.values() if not is_installed(each.code)]
            return _chosen(own or list(found.values()), frame, parts)
    return _chosen(*installed, parts) if installed is not None else None


def is_written(operation: str, root: nn.Module) -> bool:
    """Whether any expression in the calling code can have made `operation`; a derivative makes others as well."""
    parts = _Parts.of(root, {id(root)})
    frames = list(_searched())
    units = [unit for frame in frames for unit in _units(frame, parts)]
    return not frames or any(_matches(each, operation, unit) for unit in units for each in _expressions(unit.code))


def _searched() -> Iterator[Frame]:
    """The callers that may have computed the loss, from the inside: up to a module. What runs that did not."""
    for frame, _ in zip(callers(), range(_OUTWARDS), strict=False):
        yield frame
        if frame.f_code.co_name == "<module>":
            return


class _Candidate(NamedTuple):
    """An expression that can have made the operation."""

    code: types.CodeType
    expression: ast.Call | ast.BinOp | ast.AugAssign


def _chosen(candidates: list[_Candidate], frame: Frame, parts: _Parts) -> Inferred | None:
    """The line of the candidates, if it is one line or one statement.

    The caller's own code may be in a loop. What ran before the loop is no candidate if something inside of it is:
    the value belongs to this round. Nor is what comes after the line that is running now.
    """
    if len(candidates) > 1:
        inside = _loop_around(frame)
        in_loop = [each for each in candidates if each.code is not frame.f_code or each.expression.lineno in inside]
        candidates = in_loop or candidates
        done = [
            each for each in candidates if each.code is not frame.f_code or each.expression.lineno <= frame.f_lineno
        ]
        candidates = done or candidates
    first = candidates[0]
    if len(candidates) == 1:
        return Inferred(_source(first.code, first.expression), parts.name_of(first.code))
    statements = {_statement_line(each.code, each.expression.lineno) for each in candidates}
    if len(statements) > 1 or any(each.code is not first.code for each in candidates):
        return None
    lines = {each.expression.lineno for each in candidates}
    line = lines.pop() if len(lines) == 1 else statements.pop()
    text = linecache.getline(first.code.co_filename, line).rstrip("\n")
    source = Source(first.code.co_filename, line, qualified_name(first.code), text, inferred=True)
    return Inferred(source, parts.name_of(first.code))


def _loop_around(frame: Frame) -> range:
    """The lines of the innermost loop around the current line of a frame; nothing if there is none."""
    inner = max(loops_around(frame), key=lambda loop: loop.lineno, default=None)
    return range(0) if inner is None else range(inner.lineno, (inner.end_lineno or inner.lineno) + 1)


def _statement_line(code: types.CodeType, line: int) -> int:
    """The line on which the innermost statement around a line begins."""
    around = [
        node
        for node in _nodes(code.co_filename)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    return max((node.lineno for node in around), default=line)


class _Parts(NamedTuple):
    """The model's parts that the loss function may have called, by the last word of their names."""

    by_attribute: dict[str, nn.Module]
    names: dict[int, str]
    excluded: set[int]

    @classmethod
    def of(cls, root: nn.Module, excluded: set[int]) -> _Parts:
        names = {id(module): name for name, module in root.named_modules() if id(module) not in excluded}
        last = {module: name.rpartition(".")[2] for name, module in root.named_modules() if id(module) in names}
        counts = Counter(last.values())
        return cls({word: module for module, word in last.items() if counts[word] == 1}, names, excluded)

    def name_of(self, code: types.CodeType) -> str | None:
        """The only part whose forward is this code."""
        found = [self.names[id(module)] for module in self.by_attribute.values() if forward_code(module) is code]
        return found[0] if len(found) == 1 else None


def _units(frame: Frame, parts: _Parts) -> list[_Unit]:
    """The calling function and the functions it calls, a few levels deep."""
    units = [_Unit(frame.f_code, functools.partial(_look_up, frame.f_globals, names_in(frame), parts))]
    seen = {frame.f_code}
    level = units
    for _ in range(_LEVELS):
        below: list[_Unit] = []
        for unit in level:
            for expression in _expressions(unit.code):
                if isinstance(expression, ast.Call):
                    called = _called(expression, unit)
                    function = None if id(called) in parts.excluded else _user_function(called)
                    if function is not None and function.__code__ not in seen and len(seen) < _MOST_FUNCTIONS:
                        seen.add(function.__code__)
                        below.append(_unit_of(function, parts))
        units += below
        level = below
    return units


def _called(expression: ast.Call, unit: _Unit) -> Any:
    """What a call runs. `Loss()(x, y)` makes a module and runs its forward."""
    function = expression.func
    if not isinstance(function, ast.Call):
        return unit.look_up(function)
    made = unit.look_up(function.func)
    return made.forward if isinstance(made, type) and issubclass(made, nn.Module) else None


def _unit_of(function: types.FunctionType, parts: _Parts) -> _Unit:
    cells: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        cells[name] = _content(cell)
    return _Unit(function.__code__, functools.partial(_look_up, function.__globals__, cells, parts))


def _content(value: Any) -> Any:
    """What a closure's cell holds; any other value unchanged."""
    if not isinstance(value, types.CellType):
        return value
    try:
        return value.cell_contents
    except ValueError:  # not yet filled
        return None


def _look_up(names: dict[str, Any], inner: dict[str, Any], parts: _Parts, expression: ast.expr) -> Any:
    """What a called expression refers to: a name, an attribute of something named, or a part of the model."""
    if isinstance(expression, ast.Name):
        return inner.get(expression.id, names.get(expression.id))
    if isinstance(expression, ast.Attribute):
        owner = _look_up(names, inner, parts, expression.value)
        if owner is None:  # an argument of a function that is not running any more: perhaps the model
            return parts.by_attribute.get(expression.attr)
        return _attribute(owner, expression.attr)
    return None


def _attribute(value: Any, name: str) -> Any:
    """An attribute without running a property: `nn.Module` keeps its children in its own table."""
    if isinstance(value, types.ModuleType):
        return getattr(value, name, None)
    if isinstance(value, nn.Module) and name in children_of(value):
        return children_of(value)[name]
    return inspect.getattr_static(value, name, None)


def _user_function(value: Any) -> types.FunctionType | None:
    if isinstance(value, nn.Module):
        value = type(value).forward
    elif isinstance(value, (types.MethodType, staticmethod, classmethod)):
        value = value.__func__
    if isinstance(value, types.FunctionType):
        value = inspect.unwrap(value)  # a decorator times it, or counts its calls
    return value if isinstance(value, types.FunctionType) and is_user_code(value.__code__) else None


def _expressions(code: types.CodeType) -> Iterator[ast.Call | ast.BinOp | ast.AugAssign]:
    lines = {line for *_, line in code.co_lines() if line is not None}
    for expression in _file_expressions(code.co_filename):
        if expression.lineno in lines:
            yield expression


@functools.lru_cache(maxsize=64)
def _file_expressions(filename: str) -> tuple[ast.Call | ast.BinOp | ast.AugAssign, ...]:
    return tuple(node for node in _nodes(filename) if isinstance(node, (ast.Call, ast.BinOp, ast.AugAssign)))


def _nodes(filename: str) -> Iterator[ast.AST]:
    with contextlib.suppress(NotRepeatable):
        return ast.walk(tree_of(filename))
    return iter(())


def _matches(expression: ast.Call | ast.BinOp | ast.AugAssign, operation: str, unit: _Unit) -> bool:
    """Whether an expression is written as this operation: by name, by operator, or as a module of that kind."""
    if isinstance(expression, (ast.BinOp, ast.AugAssign)):
        wanted = _OPERATORS.get(operation)
        if wanted is None or not isinstance(expression.op, wanted):
            return False
        return not _is_plain_number(expression) and not _is_divided_by_a_number(expression)
    spellings = _SPELLINGS.get(operation, frozenset({operation}))
    function = expression.func
    if isinstance(function, ast.Call):  # `nn.MSELoss()(x, y)`
        made = unit.look_up(function.func)
        return isinstance(made, type) and made.__name__ in spellings
    if isinstance(function, ast.Name):
        written = function.id
    elif isinstance(function, ast.Attribute):
        written = function.attr
    else:
        return False
    called = unit.look_up(function)
    if isinstance(called, type):
        return False  # `nn.MSELoss()` makes a module and computes nothing
    if written in spellings or written.rstrip("_") in spellings:
        return _user_function(called) is None  # a function of the user's with that name is searched instead
    return isinstance(called, nn.Module) and type(called).__name__ in spellings


def _is_plain_number(expression: ast.BinOp | ast.AugAssign) -> bool:
    """`2 ** 20` is no tensor operation."""
    if isinstance(expression, ast.AugAssign):
        return False
    return isinstance(expression.left, ast.Constant) and isinstance(expression.right, ast.Constant)


def _is_divided_by_a_number(expression: ast.BinOp | ast.AugAssign) -> bool:
    """`loss / 4` makes nothing that is not finite."""
    by = expression.right if isinstance(expression, ast.BinOp) else expression.value
    number = by.value if isinstance(by, ast.Constant) else None
    return isinstance(expression.op, ast.Div) and isinstance(number, (int, float)) and abs(number) >= 1


def _source(code: types.CodeType, expression: ast.Call | ast.BinOp | ast.AugAssign) -> Source:
    """The source line of an expression, marked as inferred."""
    one_line = expression.end_lineno == expression.lineno
    return Source(
        file=code.co_filename,
        line=expression.lineno,
        function=qualified_name(code),
        text=linecache.getline(code.co_filename, expression.lineno).rstrip("\n"),
        column=expression.col_offset if one_line else None,
        end_column=expression.end_col_offset if one_line else None,
        inferred=True,
    )
