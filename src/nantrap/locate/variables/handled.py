"""Does the program handle NaN in what a call gave? Read from its source, from the call on.

A model may give NaN on purpose, where a label or a reading is missing, and the program takes `nanmean` of it. So after
a call that gave NaN the statements behind it are read: the names that its result goes into, and whether a function
that is made for NaN is called on one of them.
"""

from __future__ import annotations

import ast
import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from nantrap.locate.source import is_installed
from nantrap.locate.twoline.caller import near_callers
from nantrap.locate.twoline.rewriting import NotRepeatable, body_of

_HANDLES = frozenset(
    {"nan_to_num", "nan_to_num_", "nanmean", "nansum", "nanmedian", "nanquantile", "nanstd", "nanvar", "nanmin",
     "nanmax", "nanpercentile", "nanprod", "nanargmax", "nanargmin", "isnan", "isfinite", "isinf", "isna", "isnull",
     "notna", "notnull", "dropna", "fillna"}
)  # fmt: skip
_COLLECTS = frozenset({"append", "extend", "add", "update", "insert", "put"})
_MOST_FRAMES = 4


def handled_where() -> str:
    """Where the program handles NaN in the result of the call that it makes now: `np.nanmean, line 31`; or empty."""
    for frame in near_callers(_MOST_FRAMES):
        with contextlib.suppress(NotRepeatable, Exception):
            code = frame.f_code
            if is_installed(code):
                return ""  # a framework calls the model: what it leaves out of its mean, the user has not chosen
            if not (body := body_of(code)):
                continue
            walk = _Result(frame.f_lineno)
            walk.follow(body)
            if walk.handled is not None:
                return f"{ast.unparse(walk.handled.func)}, {os.path.basename(code.co_filename)}:{walk.handled.lineno}"
            if not walk.returned and code.co_name != "<module>":
                return ""
    return ""


@dataclass(slots=True)
class _Result:
    """Follows the result of the call at a line through the statements behind it.

    Attributes:
        line: where the call is.
        names: the names that hold something made of the result.
        handled: the first call that handles NaN in one of them.
        returned: the function gives the result to its caller.
    """

    line: int
    names: set[str] = field(default_factory=set)
    handled: ast.Call | None = None
    returned: bool = False
    begun: bool = False

    def follow(self, body: Sequence[ast.stmt]) -> None:
        """Read statements in the order of their lines."""
        for statement in body:
            if self.handled is not None:
                return
            if (statement.end_lineno or statement.lineno) < self.line:
                continue
            blocks = [block for block in _blocks(statement) if block]
            if blocks:
                self._heads(statement)
                for block in blocks:
                    self.follow(block)
            else:
                self._read(statement)

    def _heads(self, statement: ast.stmt) -> None:
        """What a loop, an `if` or a `with` reads itself: `for row in result`, `if isnan(result)`."""
        for name, value in ast.iter_fields(statement):
            if name not in ("test", "iter") or not isinstance(value, ast.expr):
                continue
            here = not self.begun and value.lineno <= self.line <= (value.end_lineno or value.lineno)
            self.begun = self.begun or here
            if here or self._is_of_result(value):
                self._look(value, every=here)
                self.names |= {each.target.id for each in ast.walk(value) if isinstance(each, ast.NamedExpr)}
                if isinstance(statement, (ast.For, ast.AsyncFor)):
                    self.names |= _stored(statement.target)

    def _read(self, statement: ast.stmt) -> None:
        """One statement: does it use the result, and where does the result go?"""
        here = not self.begun and statement.lineno <= self.line
        self.begun = self.begun or here
        uses = here or self._is_of_result(statement)
        targets = _targets(statement)
        if uses:
            self._look(statement, every=here)
            self.names |= set().union(*map(_stored, targets))
            for call in (node for node in ast.walk(statement) if isinstance(node, ast.Call)):
                if isinstance(call.func, ast.Attribute) and call.func.attr in _COLLECTS:
                    self.names |= _stored(call.func.value)
            self.returned = self.returned or isinstance(statement, ast.Return)
            self.returned = self.returned or any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in ast.walk(statement))
        elif isinstance(statement, ast.Assign):
            self.names -= {target.id for target in targets if isinstance(target, ast.Name)}

    def _look(self, node: ast.AST, *, every: bool = False) -> None:
        """Is a function that is made for NaN called on the result here?"""
        for call in (each for each in ast.walk(node) if isinstance(each, ast.Call)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            given = [*call.args, *(call.func.value,)] if isinstance(call.func, ast.Attribute) else call.args
            if name in _HANDLES and (every or any(map(self._is_of_result, given))):
                self.handled = self.handled or call

    def _is_of_result(self, node: ast.AST) -> bool:
        return any(isinstance(each, ast.Name) and each.id in self.names for each in ast.walk(node))


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The statements inside another one."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, [])
    for handler in getattr(statement, "handlers", []):
        yield handler.body


def _targets(statement: ast.stmt) -> list[ast.expr]:
    if isinstance(statement, ast.Assign):
        return statement.targets
    return [statement.target] if isinstance(statement, (ast.AugAssign, ast.AnnAssign)) else []


def _stored(target: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}
