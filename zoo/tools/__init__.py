"""The tools that are measured: one small file each, with what `zoo.running.Tool` asks for in `TOOLS`."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from zoo.running import Tool

HERE = Path(__file__).resolve().parent


@functools.cache
def tools() -> dict[str, Tool]:
    """Every tool of this folder by its name. A file imports the package that it measures when it trains."""
    names = sorted(path.stem for path in HERE.glob("*.py") if path.stem != "__init__")
    return {tool.name: tool for name in names for tool in importlib.import_module(f"zoo.tools.{name}").TOOLS}


def find_tool(name: str) -> Tool:
    """A tool by its name, or the only one in a file of your own: `python -m zoo --tool my_tool.py`."""
    if name in tools():
        return tools()[name]
    path, _, wanted = name.partition("::")
    if not path.endswith(".py"):
        raise ValueError(f"there is no tool {name!r} in the zoo; it has {', '.join(tools())}")
    found: tuple[Tool, ...] = _module(Path(path).resolve()).TOOLS
    chosen = [tool for tool in found if wanted in ("", tool.name)]
    if len(chosen) != 1:
        raise ValueError(f"{path} has {', '.join(tool.name for tool in found)}; name one: {path}::{found[0].name}")
    return chosen[0]


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"zoo_tool_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
