"""What making an instance of an unknown class would run, found by reading its source. Nothing is imported.

`torch.load` makes an instance with `cls.__new__`, fills it through `__setstate__` where there is one, and the garbage
collector calls `__del__` later. Most classes have none of these, or ones that only set attributes. Five answers:

nothing  no code of the class runs
moves    code of the class runs that only moves values about: what it does depends on the values that the file gives it
unclear  code runs that cannot be followed from here, or its source is compiled
system   code runs that reaches files, processes, the network, the import system or another pickle
absent   the source is not on this machine: `torch.load` would not find the class here either, unless the script that
         loads the file defines it
"""

from __future__ import annotations

import ast
import functools
import glob
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

from nantrap.checkpoints.audit.known_names import (
    ACTS,
    CLASSES,
    GADGETS,
    SYSTEM_CALLS,
    SYSTEM_MODULES,
    TOUCHES,
    words_of,
)
from nantrap.checkpoints.audit.pickles import Name

# ---- Names in the source of a class: what makes classes, what changes nothing outside of an object, and what reaches
# the system. The names in the code that loading a checkpoint would run are compared with these.

TORCH_NAMES: Final = frozenset(
    name.qualname.rpartition(".")[2] for name in CLASSES if name.module.startswith("torch")
) | {"Dataset", "IterableDataset", "Sampler", "Function"}
_TOUCHES_BY_NAME: Final = frozenset(name.qualname for name in TOUCHES if name.module.startswith("torch"))
METACLASSES: Final = words_of("source", "metaclasses")
CLASS_MAKERS: Final = words_of("source", "class makers")
BUILTINS: Final = words_of("source", "builtins")
PLAIN_BASES: Final = words_of("source", "plain bases") | {f"builtins.{name}" for name in BUILTINS}
PLAIN_BUILTINS: Final = words_of("source", "plain builtins") | BUILTINS
PLAIN_CALLS: Final = words_of("source", "plain calls")
PLAIN_METHODS: Final = words_of("source", "plain methods")
SYSTEM_METHODS: Final = words_of("source", "system methods")
_DECORATORS: Final = words_of("source", "decorators")


Effect = Literal["nothing", "moves", "absent", "unclear", "system"]
_ORDER: Final[tuple[Effect, ...]] = ("nothing", "moves", "absent", "unclear", "system")

_MOST_BYTES = 4 << 20
_DEEPEST = 8


class Seen(NamedTuple):
    """The effect, and for anything but `nothing` what was found."""

    effect: Effect
    why: str = ""


_NOTHING: Final = Seen("nothing")
_MOVES: Final = Seen("moves")


class _Module(NamedTuple):
    """A parsed module: its name and file, its tree, and where each imported name comes from."""

    name: str
    path: str
    tree: ast.Module
    imports: dict[str, Name]


class _Class(NamedTuple):
    module: _Module
    node: ast.ClassDef


def effect_of(name: Name, hooks: Iterable[str]) -> Seen:
    """What runs if an instance of the class is made and these methods of it are called, where it has them."""
    _notice_changes()
    return _effect_of_global(name, tuple(hooks), _DEEPEST)


def is_enum(name: Name) -> bool:
    """Whether the class is an enum, by its source."""
    _notice_changes()
    found = _located(name)
    return isinstance(found, _Class) and any(
        base.qualname.endswith(("Enum", "Flag")) for base in _named_bases(found) if base is not None
    )


# ---- where a class is


def _located(name: Name) -> _Class | Name | Seen:
    """The class; or the other global that the name was imported from; or why there is neither."""
    path = _file_of(name.module)
    if path is None and _is_importable(name.module):
        return Seen("unclear", f"the source of {name.module} was not found")
    if path is None:
        return Seen("absent", f"{name.module} is not on this machine")
    if not path:
        return Seen("unclear", f"{name.module} is compiled")
    module = _parsed(name.module, path)
    if module is None:
        return Seen("unclear", f"the source of {name.module} cannot be read")
    first, *inner = name.qualname.split(".")
    body = list(_statements(module.tree.body))
    node = _defined(body, first)
    for part in inner:
        node = _defined(list(_statements(node.body)), part) if isinstance(node, ast.ClassDef) else None
    if isinstance(node, ast.ClassDef):
        return _Class(module, node)
    if isinstance(node, ast.expr) and _dotted(node) is not None and _dotted(node) in CLASS_MAKERS:
        return _NOTHING
    if not inner and first in module.imports:
        return module.imports[first]
    return Seen("unclear", f"{name.full} is not in the source")


def _defined(body: Iterable[ast.stmt], name: str) -> ast.ClassDef | ast.expr | None:
    """The last class statement of that name, or the function whose result it is assigned."""
    found: ast.ClassDef | ast.expr | None = None
    for node in body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            found = node
        elif (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and any(isinstance(target, ast.Name) and target.id == name for target in node.targets)
        ):
            found = node.value.func
    return found


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a module or class, also those under `if`, `try` and `with`."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            for part in ("body", "orelse", "handlers", "finalbody"):
                for inner in getattr(node, part, ()):
                    yield from _statements(inner.body if isinstance(inner, ast.ExceptHandler) else [inner])


@functools.lru_cache(maxsize=512)
def _file_of(module: str) -> str | None:
    """The source of a module on the path of this Python; empty if it is compiled; `None` if it is not there."""
    if module in ("__main__", "__mp_main__"):
        return None  # the script that loads the file, whichever that will be
    root, *rest = module.split(".")
    for entry in _search_path():
        base = os.path.join(entry, root)
        is_package = os.path.isfile(os.path.join(base, "__init__.py"))
        if not is_package and not os.path.isfile(f"{base}.py") and not (rest and os.path.isdir(base)):
            if not rest and _is_compiled(base):
                return ""
            continue
        inner = os.path.join(base, *rest)
        for path in (f"{inner}.py", os.path.join(inner, "__init__.py")):
            if os.path.isfile(path):
                return path
        if _is_compiled(inner):
            return ""
        if is_package:
            return None
    return None


def _is_importable(module: str) -> bool:
    """Whether Python would find the package by any of its ways: as bytecode, in an archive, by a hook of its own."""
    root = module.partition(".")[0]
    if root in ("__main__", "__mp_main__"):
        return False
    try:
        return _search_path() != [] and importlib.util.find_spec(root) is not None  # imports nothing without a dot
    except (ImportError, ValueError, AttributeError, OSError):
        return True


def _search_path() -> list[str]:
    """Installed packages first: a file next to an untrusted checkpoint must not be taken for one of them."""
    entries = dict.fromkeys((*(part or os.getcwd() for part in sys.path), os.getcwd()))
    return sorted(entries, key=lambda entry: "site-packages" not in entry and "dist-packages" not in entry)


_searched: list[list[str]] = [[]]


def _notice_changes() -> None:
    """Forget what was read if Python would now look elsewhere."""
    if _searched[0] != (path := _search_path()):
        _searched[0] = path
        for function in (_file_of, _parsed, _defined_names, _effect_of_global):
            function.cache_clear()


def _is_compiled(base: str) -> bool:
    return any(glob.glob(glob.escape(base) + ending) for ending in (".*.so", ".so", ".*.pyd", ".pyd"))


@functools.lru_cache(maxsize=64)
def _parsed(name: str, path: str) -> _Module | None:
    """The syntax tree of a module with its imports; `None` if it is too large or cannot be read."""
    try:
        if os.path.getsize(path) > _MOST_BYTES:
            return None
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    package = name if os.path.basename(path) == "__init__.py" else name.rpartition(".")[0]
    return _Module(name, path, tree, _imports(_statements(tree.body), package))


@functools.lru_cache(maxsize=64)
def _defined_names(name: str, path: str) -> frozenset[str]:
    """Every name that a module binds in any scope; all plain builtins if it imports `*`."""
    module = _parsed(name, path)
    found: set[str] = set()
    for node in ast.walk(module.tree) if module else ():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
            found |= PLAIN_BUILTINS
    return frozenset(found - {"cls"})


def _is_plain_error(module: _Module, name: str) -> bool:
    """Whether the name is an exception of the module without a method of its own."""
    node = _defined(_statements(module.tree.body), name)
    return (
        isinstance(node, ast.ClassDef)
        and all((_dotted(base) or "").endswith(("Error", "Exception")) for base in node.bases)
        and all(isinstance(part, (ast.Pass, ast.Expr)) for part in node.body)
        and not node.keywords
    )


def _imports(body: Iterable[ast.stmt], package: str) -> dict[str, Name]:
    """Imported names: `np` is `Name("numpy", "")`, `Module` of torch.nn is `Name("torch.nn", "Module")`."""
    found: dict[str, Name] = {}
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                found[bound] = Name(alias.name if alias.asname else bound, "")
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                found[alias.asname or alias.name] = Name(source, alias.name)
    return found


# ---- what a class runs


@functools.lru_cache(maxsize=4096)
def _effect_of_global(name: Name, hooks: tuple[str, ...], depth: int) -> Seen:
    """The worst that making an instance of a class would do, by its hooks, its metaclass and its bases."""
    if depth <= 0:
        return Seen("unclear", f"{name.full} is too deep to follow")
    found = _located(name)
    if isinstance(found, Seen):
        return found
    if isinstance(found, Name):
        known = _known_base(found)
        if known == _NOTHING:
            return known
        if _is_system(found.module) or found.module.partition(".")[0] in sys.stdlib_module_names:
            return Seen("system", f"{name.full} is {found.full}")
        return known or _effect_of_global(found, hooks, depth - 1)
    seen = [_effect_of_method(found, hook, depth) for hook in hooks]
    seen += _changed_elsewhere(found)
    if "__init__" in hooks and found.node.decorator_list:
        seen += _default_factories(found)
    for keyword in found.node.keywords:
        metaclass = _resolved(found.module, keyword.value) if keyword.arg == "metaclass" else None
        if keyword.arg == "metaclass" and (metaclass is None or metaclass.qualname not in METACLASSES):
            seen.append(Seen("unclear", f"the metaclass of {name.full}"))
    for base in _named_bases(found):
        if base is None:
            seen.append(Seen("unclear", f"a base of {name.full}"))
            continue
        known = _known_base(base)
        seen.append(_effect_of_global(base, hooks, depth - 1) if known is None else known)
    worst = max(seen, key=lambda one: _ORDER.index(one.effect), default=_NOTHING)
    if worst.effect == "absent":
        return Seen("unclear", worst.why)  # the class is here, and a base of it is not
    return worst


def _changed_elsewhere(found: _Class) -> Iterator[Seen]:
    """Ways in which a class gets methods that are not written in it: decorators, assignments, code in its body."""
    name = found.node.name
    for decorator in found.node.decorator_list:
        dotted = _dotted(decorator.func if isinstance(decorator, ast.Call) else decorator) or ""
        if dotted.rpartition(".")[2] not in _DECORATORS:
            yield Seen("unclear", f"the decorator {dotted} of {name}")
    for node in _statements(found.node.body):
        plain = isinstance(node, _IN_A_CLASS) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
        if not plain:
            yield Seen("unclear", f"the body of {name} runs code")
    for part in ast.walk(found.module.tree):
        targets = part.targets if isinstance(part, (ast.Assign, ast.Delete)) else ()
        if any(isinstance(target, (ast.Attribute, ast.Subscript)) and _root(target) == name for target in targets):
            yield Seen("unclear", f"{name} is changed after it is made")
        is_set = isinstance(part, ast.Call) and _dotted(part.func) in ("setattr", "type.__setattr__")
        if isinstance(part, ast.Call) and is_set and part.args and _root(part.args[0]) == name:
            yield Seen("unclear", f"{name} is changed after it is made")


def _default_factories(found: _Class) -> Iterator[Seen]:
    """What the constructor of a dataclass calls for the fields that are not given."""
    for node in _statements(found.node.body):
        value = node.value if isinstance(node, (ast.AnnAssign, ast.Assign)) else None
        for keyword in value.keywords if isinstance(value, ast.Call) else ():
            if "factory" in (keyword.arg or "") and _dotted(keyword.value) not in BUILTINS:
                yield Seen("unclear", f"the default of a field of {found.node.name}")


_IN_A_CLASS: Final = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.Pass, ast.If, ast.Try
)  # fmt: skip


def _named_bases(found: _Class) -> Iterator[Name | None]:
    """The bases by name; `None` for one that has no name. Those made by `namedtuple` are left out."""
    for base in found.node.bases:
        node = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(node, ast.Call) and _dotted(node.func) in CLASS_MAKERS:
            continue
        yield _resolved(found.module, node)


def _known_base(name: Name) -> Seen | None:
    """Nothing for bases that are known to run nothing, `None` for those that must be read."""
    if name in TOUCHES or name in ACTS:
        return _MOVES if name in TOUCHES else Seen("unclear", f"the base {name.full}")
    if name in CLASSES or name.full in PLAIN_BASES:
        return _NOTHING
    root = name.module.partition(".")[0]
    last = name.qualname.rpartition(".")[2]
    if root == "torch" and last in TORCH_NAMES:
        return _MOVES if last in _TOUCHES_BY_NAME else _NOTHING
    if root in sys.stdlib_module_names or root == "torch":
        return Seen("unclear", f"the base {name.full}")
    return None


def _resolved(module: _Module, node: ast.expr) -> Name | None:
    """The global that an expression of names and dots is."""
    dotted = _dotted(node)
    if dotted is None:
        return None
    first, _, rest = dotted.partition(".")
    origin = module.imports.get(first)
    if origin is not None:
        return Name(origin.module, ".".join(part for part in (origin.qualname, rest) if part))
    if _defined(_statements(module.tree.body), first) is None and first in BUILTINS:
        return Name("builtins", dotted)
    return Name(module.name, dotted)


def _dotted(node: ast.expr | None) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return None if before is None else f"{before}.{node.attr}"
    return None


# ---- what a method runs


def _effect_of_method(found: _Class, name: str, depth: int) -> Seen:
    """The worst of what the method calls; nothing if the class itself does not define it."""
    for node in _statements(found.node.body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            if any(_dotted(one) not in ("staticmethod", "classmethod") for one in node.decorator_list):
                return Seen("unclear", f"{found.node.name}.{name} is decorated")
            return _effect_of_body(found, node, depth)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", 0)  # a constant is not called, and `dump_patches` is read
        is_value = value is None or (isinstance(value, ast.Constant) and not (name == "dump_patches" and value.value))
        if not is_value and any(name in _bound(target) for target in targets):
            return Seen("unclear", f"{found.node.name}.{name}")
    return _NOTHING


def _bound(target: ast.expr | None) -> list[str]:
    """The names that an assignment binds."""
    if isinstance(target, ast.Name):
        return [target.id]
    if isinstance(target, (ast.Tuple, ast.List)):
        return [name for part in target.elts for name in _bound(part)]
    return []


def _effect_of_body(found: _Class, function: ast.FunctionDef | ast.AsyncFunctionDef, depth: int) -> Seen:
    """The worst that the body of a method would do: its calls, and what it changes in other modules."""
    where = f"{found.module.name}.{found.node.name}.{function.name}"
    if depth <= 0:
        return Seen("unclear", where)
    package = found.module.name.rpartition(".")[0]
    inner = _imports((node for node in ast.walk(function) if isinstance(node, (ast.Import, ast.ImportFrom))), package)
    module = found.module._replace(imports={**found.module.imports, **inner})
    worst = _MOVES
    for node in ast.walk(function):
        seen = _NOTHING
        if isinstance(node, ast.Call):
            seen = _effect_of_call(_Class(module, found.node), node.func, depth)
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.Delete)):
            targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
            if any(_root(target) in module.imports for target in targets):
                seen = Seen("unclear", "changes another module")
        if _ORDER.index(seen.effect) > _ORDER.index(worst.effect):
            worst = Seen(seen.effect, f"{where}: {seen.why}")
    return worst


def _root(node: ast.AST) -> str | None:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _effect_of_call(found: _Class, function: ast.expr, depth: int) -> Seen:
    """What a call inside a method would do, by the name that is called."""
    dotted = _dotted(function)
    if dotted is None:
        # a method of some value: `state.pop("x").items()`, `super().__setstate__(state)`
        method = function.attr if isinstance(function, ast.Attribute) else ""
        is_super = (
            isinstance(function, ast.Attribute)
            and isinstance(function.value, ast.Call)
            and _dotted(function.value.func) == "super"
        )
        return _NOTHING if is_super else _effect_of_method_name(method)
    first, _, rest = dotted.partition(".")
    if first in ("self", "cls") and rest:
        return _effect_of_own(found, rest, depth)
    if first in found.module.imports:
        called = _resolved(found.module, function)
        assert called is not None
        if _is_system(called.module) or called.full in SYSTEM_CALLS:
            return Seen("system", called.full)
        if called.full in PLAIN_CALLS or called in CLASSES:
            return _NOTHING
        return Seen("unclear", called.full)
    if rest:
        if _defined(_statements(found.module.tree.body), first) is not None and rest.startswith("__"):
            return _NOTHING  # `Base.__init__(self)`: bases are judged by themselves
        return _effect_of_method_name(dotted.rpartition(".")[2])
    if dotted in SYSTEM_CALLS:
        return Seen("system", dotted)
    if dotted in _defined_names(found.module.name, found.module.path) and not _is_plain_error(found.module, dotted):
        return Seen("unclear", dotted)  # not the builtin of that name
    if dotted in PLAIN_BUILTINS or dotted == "cls" or dotted.endswith(("Error", "Exception", "Warning")):
        return _NOTHING
    return Seen("unclear", dotted)


def _effect_of_own(found: _Class, rest: str, depth: int) -> Seen:
    """`self.method()` of the class, or a harmless method of something the instance holds."""
    name = rest.partition(".")[0]
    if name == rest:
        for node in _statements(found.node.body):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
                return _effect_of_body(found, node, depth - 1)
    return _effect_of_method_name(rest.rpartition(".")[2])


def _effect_of_method_name(method: str) -> Seen:
    if method in PLAIN_METHODS or (method.startswith("__") and method.endswith("__") and method != "__import__"):
        return _NOTHING
    return Seen("system" if method in SYSTEM_METHODS else "unclear", f"{method}()")


def _is_system(module: str) -> bool:
    return module in SYSTEM_MODULES or module.partition(".")[0] in SYSTEM_MODULES | GADGETS
