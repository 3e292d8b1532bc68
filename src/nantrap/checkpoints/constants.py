"""A config that is a Python file of constants, read and never run: `LEARNING_RATE = 1e-4`."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from nantrap.errors import FormatError


def read_constants(text: str, path: Path, *, strict: bool = False) -> dict[str, Any]:
    """`NAME = value` at the top of a Python file, by the name in small letters.

    Args:
        text: the file's.
        path: its name, for errors.
        strict: anything else than a constant is an error; without it, it is passed over.
    """
    try:
        lines = ast.parse(text).body
    except SyntaxError as error:
        raise FormatError(f"{path}:{error.lineno}: not Python: {error.msg}") from None
    found: dict[str, Any] = {}
    for line in lines:
        if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant):
            continue  # a docstring
        match line:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                try:
                    found[name.lower()] = ast.literal_eval(value)
                except ValueError:
                    if strict:
                        where = f"{path}:{line.lineno}"
                        raise FormatError(f"{where}: {name} is not a plain value; the file is read, not run") from None
            case _ if strict:
                raise FormatError(f"{path}:{line.lineno}: expected NAME = value; the file is read, not run")
    return found
