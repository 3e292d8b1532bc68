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
from collections.abc import Collection, Iterable, Iterator
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
DECORATING: Final = words_of("source", "decorating")


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
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_Binding = ast.ClassDef | _Function | Name | Seen | None
"""What a name is bound to; `None` for what is no class, no function and not imported."""


class _Module(NamedTuple):
    """A parsed module: its name and file, its tree, and what each name that it binds is bound to."""

    name: str
    path: str
    tree: ast.Module
    bound: dict[str, list[_Binding]]
    binds_unwritten: bool


class _Class(NamedTuple):
    module: _Module
    node: ast.ClassDef


class _Line(NamedTuple):
    """A class and its bases, as far as they have a source, and the worst of what was seen on the way."""

    classes: tuple[_Class, ...]
    seen: Seen


def effect_of(name: Name, hooks: Iterable[str]) -> Seen:
    """What runs if an instance of the class is made and these methods of it are called, where it has them."""
    _notice_changes()
    return _effect_of(name, tuple(hooks))


def is_enum(name: Name) -> bool:
    """Whether the class is an enum, by its source."""
    _notice_changes()
    return any(
        base.qualname.endswith(("Enum", "Flag"))
        for found in _located(name)
        if isinstance(found, _Class)
        for base in _named_bases(found)
        if base is not None
    )


def naming(name: Name) -> Seen:
    """What runs if a global is only looked up: a module may make it when it is asked, and a class what is in it."""
    _notice_changes()
    path = _file_of(name.module)
    module = _parsed(name.module, path) if path else None
    if module is None:
        return _NOTHING
    first, *inner = name.qualname.split(".")
    if first not in module.bound and "__getattr__" in module.bound:
        return Seen("unclear", f"{name.module} makes {first} when it is asked for it")
    outer = first
    for part in inner:
        line = _line_of(Name(name.module, outer), _DEEPEST)
        bodies = [each.node.body for each in line.classes if part in _bindings(each.node.body, "")]
        is_plain = bodies and line.seen in (_NOTHING, _MOVES) and all(_is_plain(body, part) for body in bodies)
        if line.classes and not is_plain:
            return Seen("unclear", f"{outer} may make {part} when it is asked for it")
        outer = f"{outer}.{part}"
    return _NOTHING


def as_key(name: Name, depth: int = _DEEPEST) -> Seen:
    """What runs if a global is hashed or compared: nothing for a function, and for a class without a metaclass."""
    _notice_changes()
    path = _file_of(name.module)
    module = _parsed(name.module, path) if path else None
    bound = module.bound.get(name.qualname, []) if module else []
    worst = _NOTHING
    for each in bound if depth > 0 else ():
        if isinstance(each, Name):
            worst = _worse(worst, as_key(each, depth - 1))
        elif each is None or (isinstance(each, _FUNCTIONS) and each.decorator_list):
            worst = Seen("unclear", f"{name.full} is hashed")
    if any(isinstance(each, ast.ClassDef) for each in bound) or "." in name.qualname:
        seen = _line_of(name, _DEEPEST).seen
        worst = _worse(worst, _NOTHING if seen.effect in ("moves", "absent") else seen)
    return worst


def _is_plain(body: Iterable[ast.stmt], name: str) -> bool:
    """Whether a class gives what it binds to a name as it is: no descriptor, which would be called."""
    for node in _statements(body):
        is_defined = isinstance(node, (ast.ClassDef, *_FUNCTIONS)) and node.name == name
        if is_defined and any(_dotted(one) not in _OF_METHODS for one in getattr(node, "decorator_list", ())):
            return False
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(name in _bound(target) for target in targets):
            value = getattr(node, "value", None)
            makes = isinstance(value, ast.Call) and (_dotted(value.func) or "").rpartition(".")[2] != "auto"
            if makes or isinstance(value, (ast.Name, ast.Attribute, ast.Subscript, ast.IfExp, ast.Lambda)):
                return False
    return True


def _worse(one: Seen, other: Seen) -> Seen:
    return other if _ORDER.index(other.effect) > _ORDER.index(one.effect) else one


# ---- where a class is


def _located(name: Name) -> list[_Class | Name | Seen]:
    """What the name is bound to, each of several: a class, another global that it is imported as, or why neither."""
    path = _file_of(name.module)
    if path is None and _is_importable(name.module):
        return [Seen("unclear", f"the source of {name.module} was not found")]
    if path is None:
        return [Seen("absent", f"{name.module} is not on this machine")]
    if not path:
        return [Seen("unclear", f"{name.module} is compiled")]
    module = _parsed(name.module, path)
    if module is None:
        return [Seen("unclear", f"the source of {name.module} cannot be read")]
    first, *inner = name.qualname.split(".")
    bound: list[_Binding] = module.bound.get(first, [])
    for part in inner:
        bodies = [each.body if isinstance(each, ast.ClassDef) else [] for each in bound]
        bound = [each for body in bodies for each in _bindings(body, "").get(part, [])]
    if not bound:
        return [Seen("unclear", f"{name.full} is not in the source")]
    again = Seen("unclear", f"{name.full} is bound to something else than a class")
    found: list[_Class | Name | Seen] = []
    for each in bound:
        if isinstance(each, ast.ClassDef):
            found.append(_Class(module, each))
        else:
            found.append(each if isinstance(each, (Name, Seen)) else again)
    return found


def _bindings(body: Iterable[ast.stmt], package: str) -> dict[str, list[_Binding]]:
    """What each name of a module or of a class is bound to.

    A class statement, the global that it is imported as (`np` is `Name("numpy", "")`, `Module` of torch.nn is
    `Name("torch.nn", "Module")`), a function, `_NOTHING` for a class that a call like `namedtuple` makes; else `None`.
    """
    found: dict[str, list[_Binding]] = {}
    made: set[int] = set()
    for node in _own_nodes(body):
        if isinstance(node, (ast.ClassDef, *_FUNCTIONS)):
            found.setdefault(node.name, []).append(node)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.partition(".")[0]
                found.setdefault(bound, []).append(Name(alias.name if alias.asname else bound, ""))
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                found.setdefault(alias.asname or alias.name, []).append(Name(source, alias.name))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            if _dotted(node.value.func) in CLASS_MAKERS:
                made |= {id(target) for target in node.targets}
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.setdefault(node.id, []).append(_NOTHING if id(node) in made else None)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.setdefault(node.name, []).append(None)
    return found


def _own_nodes(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """What a module or a class runs itself: not the bodies of functions, and not those of classes in it."""
    for node in body:
        yield node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            given = node.args
            yield from _own_nodes([*node.decorator_list, *given.defaults, *(d for d in given.kw_defaults if d)])
        elif isinstance(node, ast.ClassDef):
            yield from _own_nodes([*node.decorator_list, *node.bases, *(word.value for word in node.keywords)])
        elif not isinstance(node, ast.Lambda):
            yield from _own_nodes(ast.iter_child_nodes(node))


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements of a class, also those under `if` and `try`."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.Try)):
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
        for function in (_file_of, _parsed, _defined_names, _line_of, _effect_of):
            function.cache_clear()


def _is_compiled(base: str) -> bool:
    return any(glob.glob(glob.escape(base) + ending) for ending in (".*.so", ".so", ".*.pyd", ".pyd"))


@functools.lru_cache(maxsize=64)
def _parsed(name: str, path: str) -> _Module | None:
    """The syntax tree of a module with its names; `None` if it is too large or cannot be read."""
    try:
        if os.path.getsize(path) > _MOST_BYTES:
            return None
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    package = name if os.path.basename(path) == "__init__.py" else name.rpartition(".")[0]
    return _Module(name, path, tree, _bindings(tree.body, package), _binds_unwritten(tree))


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
    bound = module.bound.get(name, [])
    return bool(bound) and all(
        isinstance(node, ast.ClassDef)
        and all((_dotted(base) or "").endswith(("Error", "Exception")) for base in node.bases)
        and all(isinstance(part, (ast.Pass, ast.Expr)) for part in node.body)
        and not node.keywords
        for node in bound
    )


# ---- what a class runs


@functools.lru_cache(maxsize=4096)
def _effect_of(name: Name, hooks: tuple[str, ...]) -> Seen:
    """The worst that making an instance of a class would do.

    Its hooks are followed through the class and its bases, with every other method and property that they reach: a base
    may call a method that only the class below it has.
    """
    line = _line_of(name, _DEEPEST)
    worst = line.seen
    if worst.effect == "absent":
        return worst
    if "__init__" in hooks:
        for each in line.classes:
            worst = functools.reduce(_worse, _default_factories(each), worst)
    defined = {part for each in line.classes for part in _bindings(each.node.body, "")}
    pending, reached = list(hooks), set(hooks)
    while pending:
        method = pending.pop()
        for each in line.classes:
            for seen, uses in _definitions(each, method, defined):
                worst = _worse(worst, seen)
                pending += (uses & defined) - reached
                reached |= uses
    return worst


@functools.lru_cache(maxsize=4096)
def _line_of(name: Name, depth: int) -> _Line:
    """The classes that a class is made of, and what is wrong beside their methods: a metaclass, a decorator, a base."""
    if depth <= 0:
        return _Line((), Seen("unclear", f"{name.full} is too deep to follow"))
    classes: list[_Class] = []
    worst = _NOTHING
    located = _located(name)
    for found in located:
        if isinstance(found, Seen):
            worst = _worse(worst, found)
        elif isinstance(found, Name):
            known = _known_base(found)
            if known == _NOTHING:
                continue
            if _is_system(found.module) or found.module.partition(".")[0] in sys.stdlib_module_names:
                worst = _worse(worst, Seen("system", f"{name.full} is {found.full}"))
                continue
            line = _Line((), known) if known else _line_of(found, depth - 1)
            classes += line.classes
            worst = _worse(worst, line.seen)
        else:
            line = _line_of_class(found, depth)
            classes += line.classes
            worst = _worse(worst, line.seen)
    if worst.effect == "absent" and len(located) > 1:
        worst = Seen("unclear", worst.why)  # one of several: another is here
    return _Line(tuple(classes), worst)


def _line_of_class(found: _Class, depth: int) -> _Line:
    """A class statement and its bases."""
    name = f"{found.module.name}.{found.node.name}"
    worst = functools.reduce(_worse, _changed_elsewhere(found), _NOTHING)
    for keyword in found.node.keywords:
        metaclass = _resolved(found.module, keyword.value) if keyword.arg == "metaclass" else None
        if keyword.arg == "metaclass" and (metaclass is None or metaclass.qualname not in METACLASSES):
            worst = _worse(worst, Seen("unclear", f"the metaclass of {name}"))
    classes = [found]
    for base in _named_bases(found):
        if base is None:
            worst = _worse(worst, Seen("unclear", f"a base of {name}"))
            continue
        known = _known_base(base)
        line = _Line((), known) if known else _line_of(base, depth - 1)
        worst = _worse(worst, Seen("unclear", line.seen.why) if line.seen.effect == "absent" else line.seen)
        classes += line.classes
        for each in line.classes:
            for part in ("__init_subclass__", *(["__class_getitem__"] if _is_subscripted(found) else [])):
                if part in _bindings(each.node.body, ""):
                    worst = _worse(worst, Seen("unclear", f"{each.node.name}.{part} may change {name}"))
    return _Line(tuple(classes), worst)


def _is_subscripted(found: _Class) -> bool:
    return any(isinstance(base, ast.Subscript) for base in found.node.bases)


def _changed_elsewhere(found: _Class) -> Iterator[Seen]:
    """Ways in which a class gets methods that are not written in it: decorators, assignments, code in its body."""
    name, module = found.node.name, found.module
    for decorator in found.node.decorator_list:
        called = _resolved(module, decorator.func if isinstance(decorator, ast.Call) else decorator)
        known = called is not None and called.module.partition(".")[0] in DECORATING
        if called is None or not known or called.full.rpartition(".")[2] not in _DECORATORS:
            yield Seen("unclear", f"the decorator {'' if called is None else called.full} of {name}")
    for statement in _statements(found.node.body):
        plain = isinstance(statement, _IN_A_CLASS)
        if not (plain or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))):
            yield Seen("unclear", f"the body of {name} runs code")
    for node in _own_nodes(found.node.body):
        stored = isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load)
        if stored or isinstance(node, ast.NamedExpr) or _reaches_names(node):
            yield Seen("unclear", f"the body of {name} runs code")
        elif isinstance(node, ast.Call) and _is_told_its_owner(module, node.func):
            yield Seen("unclear", f"{ast.unparse(node.func)} in {name} is told its class")
    for part in ast.walk(module.tree):
        targets = part.targets if isinstance(part, (ast.Assign, ast.Delete)) else ()
        if any(isinstance(target, (ast.Attribute, ast.Subscript)) and _root(target) == name for target in targets):
            yield Seen("unclear", f"{name} is changed after it is made")
        is_set = isinstance(part, ast.Call) and _dotted(part.func) in ("setattr", "type.__setattr__")
        if isinstance(part, ast.Call) and is_set and part.args and _root(part.args[0]) == name:
            yield Seen("unclear", f"{name} is changed after it is made")
    if module.binds_unwritten:
        yield Seen("unclear", f"{module.name} binds names that are not written in it")


def _reaches_names(node: ast.AST, functions: tuple[str, ...] = ("locals", "vars", "globals", "exec", "eval")) -> bool:
    """Whether this calls a function through which code binds names that are not written."""
    return isinstance(node, ast.Call) and _dotted(node.func) in functions


def _binds_unwritten(tree: ast.Module) -> bool:
    """Whether a module binds its names through their dictionary, its entry in `sys.modules`, or a frame."""
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else ()
        if any(isinstance(each, ast.Subscript) and _reaches_names(each.value, ("globals", "vars")) for each in targets):
            return True
        if isinstance(node, ast.Attribute):
            of_names = node.attr in ("update", "setdefault", "pop") and _reaches_names(node.value, ("globals", "vars"))
            if of_names or node.attr in ("_getframe", "currentframe", "f_locals", "f_globals"):
                return True
        if _reaches_names(node, ("setattr",)) and isinstance(node, ast.Call) and _root(node.args[0]) == "sys":
            return True
    return any(_reaches_names(node, ("locals", "exec", "eval")) for node in _own_nodes(tree.body))


def _is_told_its_owner(module: _Module, function: ast.expr) -> bool:
    """Whether a call in the body of a class may make an object with `__set_name__`, which gets the class."""
    called = _resolved(module, function)
    if called is None or called.module.partition(".")[0] in (*sys.stdlib_module_names, "torch"):
        return False
    line = _line_of(called, 2)
    return any("__set_name__" in _bindings(each.node.body, "") for each in line.classes)


def _default_factories(found: _Class) -> Iterator[Seen]:
    """What the constructor of a dataclass calls for the fields that are not given, or on those that are."""
    for node in _statements(found.node.body if found.node.decorator_list else ()):
        value = node.value if isinstance(node, (ast.AnnAssign, ast.Assign)) else None
        for keyword in value.keywords if isinstance(value, ast.Call) else ():
            called = keyword.arg or "factory"
            if called.endswith(("factory", "converter", "validator", "on_setattr")) and (
                _dotted(keyword.value) not in BUILTINS
            ):
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
    """The global that an expression of names and dots is; `None` where it may be several things."""
    dotted = _dotted(node)
    if dotted is None:
        return None
    first, _, rest = dotted.partition(".")
    bound = module.bound.get(first, [])
    origins = {each for each in bound if isinstance(each, Name)}
    if bound and len(origins) == 1 and all(isinstance(each, Name) for each in bound):
        (origin,) = origins
        return Name(origin.module, ".".join(part for part in (origin.qualname, rest) if part))
    if not bound and first in BUILTINS:
        return Name("builtins", dotted)
    return Name(module.name, dotted)  # `_located` tells what it is bound to


def _dotted(node: ast.expr | None) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return None if before is None else f"{before}.{node.attr}"
    return None


# ---- what a method runs


def _definitions(found: _Class, name: str, defined: Collection[str]) -> Iterator[tuple[Seen, set[str]]]:
    """Each definition of a name in one class: the worst that it does, and what of the instance it uses."""
    for node in _statements(found.node.body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == name:
            accessors = ("property", f"{name}.setter", f"{name}.getter", f"{name}.deleter")
            if any(_dotted(one) not in (*_OF_METHODS, *accessors) for one in node.decorator_list):
                yield Seen("unclear", f"{found.node.name}.{name} is decorated"), set()
            yield _effect_of_body(found, node, defined), _used_of_instance(node, defined)
        elif isinstance(node, ast.ClassDef) and node.name == name:
            yield Seen("unclear", f"{found.node.name}.{name}"), set()
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", 0)  # a constant is not called, and `dump_patches` is read
        is_value = value is None or (isinstance(value, ast.Constant) and not (name == "dump_patches" and value.value))
        if not is_value and any(name in _bound(target) for target in targets):
            yield Seen("unclear", f"{found.node.name}.{name}"), set()


_OF_METHODS: Final = ("staticmethod", "classmethod", "abstractmethod", "abc.abstractmethod", "override")


def _bound(target: ast.expr | None) -> list[str]:
    """The names that an assignment binds."""
    if isinstance(target, ast.Name):
        return [target.id]
    if isinstance(target, (ast.Tuple, ast.List)):
        return [name for part in target.elts for name in _bound(part)]
    return _bound(target.value) if isinstance(target, ast.Starred) else []


def _used_of_instance(function: ast.FunctionDef | ast.AsyncFunctionDef, defined: Collection[str]) -> set[str]:
    """The names of a class that a method uses on its instance.

    Written ones (`self.name`), those that an assignment to it calls, and all with underscores at both ends where the
    instance is used as a whole: what is done with it may call any of these.
    """
    given = [*function.args.posonlyargs, *function.args.args][:1]
    instances = {"self", "cls", *(each.arg for each in given)}
    found: set[str] = set()
    whole = {id(part) for part in ast.walk(function) if isinstance(part, ast.Name) and part.id in instances}
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in instances:
            whole.discard(id(node.value))
            found |= {node.attr, *(() if isinstance(node.ctx, ast.Load) else ("__setattr__", "__delattr__"))}
        elif isinstance(node, ast.Call):
            called = _dotted(node.func) or ""
            if called in ("setattr", "object.__setattr__", "delattr") and not isinstance(node.args[1:2], ast.Constant):
                found |= {"__setattr__", *defined}
            if called in _LEAVES_ALONE or called.rpartition(".")[2] in ("__init__", "__new__", "__setstate__"):
                whole -= {id(argument) for argument in node.args}
            if called == "cls":
                found |= {"__new__", "__init__", "__post_init__"}
                whole.discard(id(node.func))
        elif isinstance(node, ast.Return) and node.value is not None:
            whole.discard(id(node.value))
    if whole:
        found |= {name for name in defined if name.startswith("__") and name.endswith("__")} - _NOT_IMPLICIT
        found |= {"keys"}
    return found


_LEAVES_ALONE: Final = words_of("source", "leaves alone")
"""Functions that call no method of the instance that they are given, but for those that are counted by name."""
_NOT_IMPLICIT: Final = words_of("source", "not implicit")


def _effect_of_body(found: _Class, function: ast.FunctionDef | ast.AsyncFunctionDef, defined: Collection[str]) -> Seen:
    """The worst that the body of a method would do: its calls, and what it changes in other modules."""
    where = f"{found.module.name}.{found.node.name}.{function.name}"
    inner = _bindings(
        [node for node in ast.walk(function) if isinstance(node, (ast.Import, ast.ImportFrom))],
        found.module.name.rpartition(".")[0],
    )
    module = found.module._replace(bound={**found.module.bound, **inner})
    worst = _MOVES
    for node in ast.walk(function):
        seen = _NOTHING
        if isinstance(node, ast.Call):
            seen = _effect_of_call(_Class(module, found.node), node.func, defined)
        elif isinstance(node, (ast.Assign, ast.AugAssign, ast.Delete)):
            targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
            if any(_is_imported(module, _root(target)) for target in targets):
                seen = Seen("unclear", "changes another module")
        if _ORDER.index(seen.effect) > _ORDER.index(worst.effect):
            worst = Seen(seen.effect, f"{where}: {seen.why}")
    return worst


def _is_imported(module: _Module, name: str | None) -> bool:
    return any(isinstance(each, Name) for each in module.bound.get(name or "", ()))


def _root(node: ast.AST) -> str | None:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def _effect_of_call(found: _Class, function: ast.expr, defined: Collection[str]) -> Seen:
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
    if first in ("self", "cls") and rest:  # what the class itself defines is followed by its name
        return _NOTHING if rest in defined else _effect_of_method_name(rest.rpartition(".")[2])
    if _is_imported(found.module, first):
        called = _resolved(found.module, function)
        if called is None or called.module == found.module.name:
            return Seen("unclear", dotted)
        if _is_system(called.module) or called.full in SYSTEM_CALLS:
            return Seen("system", called.full)
        if called.full in PLAIN_CALLS or called in CLASSES:
            return _NOTHING
        return Seen("unclear", called.full)
    if rest:
        if first in found.module.bound and rest.startswith("__"):
            return _NOTHING  # `Base.__init__(self)`: bases are judged by themselves
        return _effect_of_method_name(dotted.rpartition(".")[2])
    if dotted in SYSTEM_CALLS:
        return Seen("system", dotted)
    if dotted in _defined_names(found.module.name, found.module.path) and not _is_plain_error(found.module, dotted):
        return Seen("unclear", dotted)  # not the builtin of that name
    if dotted in PLAIN_BUILTINS or dotted == "cls" or dotted.endswith(("Error", "Exception", "Warning")):
        return _NOTHING
    return Seen("unclear", dotted)


def _effect_of_method_name(method: str) -> Seen:
    if method in PLAIN_METHODS or (method.startswith("__") and method.endswith("__") and method != "__import__"):
        return _NOTHING
    return Seen("system" if method in SYSTEM_METHODS else "unclear", f"{method}()")


def _is_system(module: str) -> bool:
    return module in SYSTEM_MODULES or module.partition(".")[0] in SYSTEM_MODULES | GADGETS
