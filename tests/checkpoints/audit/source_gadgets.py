"""Classes whose hooks are not where one looks first: bound again, in another branch, by a base, a decorator or a call.

`SOURCE_GADGETS` makes an instance of each class of `SOURCE_LIBRARY`, and of three of a module that changes its names;
each makes a file named `marker` where it is loaded. Those of `SOURCE_HARMLESS` do not.
"""

from __future__ import annotations

from checkpoints.audit.gadgets import F, P, build, call, dct, lst, n, new, sd, t

SL = "sourcelib"

SOURCE_LIBRARY = """
import dataclasses, enum, functools, os, sys, typing
from dataclasses import dataclass, field
from enum import Enum as Rebound
from sourcebase import Harmless, Harmless as Shadowed, Acting as Late, starred


def mark(*args, **kwargs):
    open("marker", "w").close()
    return {}


class Plain:
    pass


class Moves:
    scale = 1.0

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._finish()

    def _finish(self):
        self.kept = self.scale


class Acting:
    def __setstate__(self, state):
        mark()


class Template:
    def __setstate__(self, state):
        self.setup()

    def setup(self):
        pass


class FillsTemplate(Template):
    def setup(self):
        mark()


class SetsItems:
    def __setattr__(self, name, value):
        mark()

    def __setstate__(self, state):
        self.a = state["a"]


class SetsByName:
    @property
    def a(self):
        return 1

    @a.setter
    def a(self, value):
        mark()

    def __setstate__(self, state):
        for name, value in state.items():
            setattr(self, name, value)


class Walrus:
    if (__setstate__ := mark):
        pass


class Nested:
    class __setstate__:
        def __init__(self, state):
            mark()


class Locals:
    locals()["__setstate__"] = mark


class Update:
    unused = locals().update(__setstate__=mark)


class Default:
    def method(self, x=locals().update(__setstate__=mark)):
        pass


class Planter:
    def __set_name__(self, owner, name):
        owner.__setstate__ = mark


class ByName:
    planted = Planter()


class WithInit:
    def __init_subclass__(cls, **kwargs):
        cls.__setstate__ = mark


class BySubclass(WithInit):
    pass


class Itemed:
    def __class_getitem__(cls, key):
        return Acting


class BySubscript(Itemed[int]):
    pass


Rebound = Acting


class ByRebound(Rebound):
    pass


class Replaced:
    pass


Replaced = Acting


class Called:
    pass


def Called(*args):
    mark()
    return 1


class Imported:
    pass


from sourcebase import Acting as Imported

if sys.version_info >= (3,):
    class Branch:
        def __setstate__(self, state):
            mark()
else:
    class Branch:
        pass


class Twice:
    def __setstate__(self, state):
        self.__dict__.update(state)

    def __setstate__(self, state):
        mark()


class InBranch:
    if sys.version_info < (3,):
        def __setstate__(self, state):
            self.__dict__.update(state)
    else:
        def __setstate__(self, state):
            mark()


def final(cls):
    cls.__setstate__ = mark
    return cls


@final
class Decorated:
    pass


for Looped in (Acting,):
    pass


class Looped2:
    pass


for Looped2 in (Acting,):
    pass


class ByType:
    pass


ByType = type("ByType", (), {"__setstate__": mark})


class Aliased:
    method = __setstate__ = mark


class TupleBound:
    (a, (__setstate__, b)) = 1, (mark, 2)


class Descriptor:
    def __get__(self, instance, owner):
        return mark


class ByDescriptor:
    __setstate__: typing.Any = Descriptor()


class Starred(starred.Thing):
    pass


class Given(Harmless):
    __setstate__ = Acting.__setstate__


class Shadowing(Shadowed):
    pass


Shadowing.__setstate__ = mark


class ByHelper:
    def __setstate__(self, state):
        helper = self.__dict__.setdefault("helper", mark)
        helper()


class ByAttribute:
    run = mark

    def __setstate__(self, state):
        self.run(state)


class BySuper(Acting):
    def __setstate__(self, state):
        super().__setstate__(state)


class ByFormat:
    def __format__(self, spec):
        mark()
        return ""

    def __setstate__(self, state):
        self.text = f"{self}"


class ByOperator:
    def __add__(self, other):
        mark()

    def __setstate__(self, state):
        self.sum = self + 1


class ByContext:
    def __enter__(self):
        mark()

    def __exit__(self, *exception):
        pass

    def __setstate__(self, state):
        with self:
            pass


class ByLoop:
    def __iter__(self):
        mark()
        return iter(())

    def __setstate__(self, state):
        for each in self:
            pass


class ByProperty:
    @property
    def prop(self):
        mark()

    def __setstate__(self, state):
        self.seen = self.prop


class ByAssert:
    def __bool__(self):
        mark()
        return True

    def __setstate__(self, state):
        if self:
            pass


class ByUnpack:
    def keys(self):
        mark()
        return []

    def __setstate__(self, state):
        self.all = {**self}


@dataclass
class Converted:
    x: int = field(default_factory=mark)


class Lambda:
    __setstate__ = lambda self, state: mark()


class Partial:
    __setstate__ = functools.partialmethod(mark)


class Slotted:
    __slots__ = ("a",)

    def __setattr__(self, name, value):
        mark()


class Missing(enum.Enum):
    A = 1

    @classmethod
    def _missing_(cls, value):
        mark()
        return cls.A


class OfMeta(type):
    def __call__(cls, *args):
        mark()
        return super().__call__(*args)


class Metaclassed(metaclass=OfMeta):
    pass
"""

SOURCE_DYNAMIC = """
import sys
from sourcebase import Acting, mark


def planting(function):
    sys._getframe(1).f_locals["__setstate__"] = mark
    return function


class ByDecorator:
    @planting
    def other(self):
        pass


class Globals:
    pass


globals()["Globals"] = Acting


class Module:
    pass


setattr(sys.modules[__name__], "Module", Acting)
"""

SOURCE_BASE = """
def mark(*args, **kwargs):
    open("marker", "w").close()
    return {}
class Harmless:
    pass
class Acting:
    def __setstate__(self, state):
        open("marker", "w").close()
class starred:
    Thing = Acting
"""

_FILLED = [
    "FillsTemplate",
    "SetsItems",
    "SetsByName",
    "Walrus",
    "Nested",
    "Locals",
    "Update",
    "Default",
    "ByName",
    "BySubclass",
    "BySubscript",
    "ByRebound",
    "Replaced",
    "Imported",
    "Branch",
    "Twice",
    "InBranch",
    "Decorated",
    "Looped",
    "Looped2",
    "ByType",
    "Aliased",
    "TupleBound",
    "ByDescriptor",
    "Starred",
    "Given",
    "Shadowing",
    "ByHelper",
    "ByAttribute",
    "BySuper",
    "ByFormat",
    "ByOperator",
    "ByContext",
    "ByLoop",
    "ByProperty",
    "ByAssert",
    "ByUnpack",
    "Lambda",
    "Partial",
    "Late",
]
SOURCE_GADGETS = {f"source: {name}": P(build(new(n(SL, name)), sd(a=F))) for name in _FILLED}
SOURCE_GADGETS |= {
    f"source: {name}": P(build(new(n("sourcedynamic", name)), sd(a=F))) for name in ("ByDecorator", "Globals", "Module")
}
SOURCE_GADGETS |= {
    "source: Called": P(call(n(SL, "Called"))),
    "source: Converted": P(call(n(SL, "Converted"))),
    "source: Metaclassed": P(call(n(SL, "Metaclassed"))),
    "source: Missing": P(call(n(SL, "Missing"), t("absent"))),
    "source: Slotted": P(build(new(n(SL, "Slotted")), b"N" + sd(a=F) + b"\x86")),
    "source: in a list": P(lst(build(new(n(SL, "Twice")), sd(a=F)))),
    "source: as a value": P(dct((t("model"), build(new(n(SL, "Branch")), sd(a=F))))),
}
SOURCE_HARMLESS = {name: P(build(new(n(SL, name)), sd(a=F))) for name in ("Plain", "Moves")}
