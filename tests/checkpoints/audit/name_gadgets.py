"""Files that act though they only name things: a class as a key, a name that its module or its class makes when asked.

`NAME_GADGETS` has them by name; `NAME_LIBRARY` is the module that they name. Each makes a file named `marker` where it
is loaded, but for one: Python compares no key with another one that is the same object.
"""

from __future__ import annotations

from checkpoints.audit.gadgets import F, P, Z, build, call, dct, i, lst, n, new, sd, t, tup

ML = "namelib"

NAME_LIBRARY = """
import enum


def mark(*args, **kwargs):
    open("marker", "w").close()


class Hashing(type):
    def __hash__(cls):
        mark()
        return 1


class Hashed(metaclass=Hashing):
    pass


class Comparing(type):
    def __eq__(cls, other):
        mark()
        return False

    __hash__ = type.__hash__


class Compared(metaclass=Comparing):
    pass


class Joining(type):
    def __or__(cls, other):
        mark()
        return int

    __ror__ = __or__


class Joined(metaclass=Joining):
    pass


class Asking(type):
    def __getattr__(cls, name):
        mark()
        return int


class Asked(metaclass=Asking):
    pass


class Descriptor:
    def __get__(self, instance, owner):
        mark()
        return int


class Holder:
    Inner = Descriptor()

    class Plain:
        pass


class ByProperty(type):
    @property
    def Inner(cls):
        mark()
        return int


class WithProperty(metaclass=ByProperty):
    pass


class FromBase(Holder):
    pass


class Color(enum.Enum):
    RED = 1


def __getattr__(name):
    mark()
    return int
"""

HASHED, COMPARED, JOINED = n(ML, "Hashed"), n(ML, "Compared"), n(ML, "Joined")
NAME_GADGETS = {
    "class as a key": P(dct((HASHED, i(1)))),
    "class as a key, item by item": P(b"}" + HASHED + i(1) + b"s"),
    "class in a key": P(dct((tup(HASHED, i(2)), i(1)))),
    "class deep in a key": P(dct((tup(tup(tup(HASHED))), i(1)))),
    "class in a set": P(b"\x8f(" + HASHED + b"\x90"),
    "class in a frozenset": P(b"(" + HASHED + b"\x91"),
    "class in a frozenset of tuples": P(b"(" + tup(HASHED) + b"\x91"),
    "set of a list": P(call(n("builtins", "set"), lst(HASHED))),
    "frozenset of a list": P(call(n("builtins", "frozenset"), lst(HASHED))),
    "dict of pairs": P(call(n("builtins", "dict"), lst(tup(HASHED, i(1))))),
    "ordered dict of pairs": P(call(n("collections", "OrderedDict"), lst(tup(HASHED, i(1))))),
    "ordered dict, item by item": P(call(n("collections", "OrderedDict")) + HASHED + i(1) + b"s"),
    "counter of a list": P(call(n("collections", "Counter"), lst(HASHED))),
    "counter of a dict": P(call(n("collections", "Counter"), dct((HASHED, i(1))))),
    "default dict": P(call(n("collections", "defaultdict"), n("builtins", "int")) + HASHED + i(1) + b"s"),
    "default dict of pairs": P(call(n("collections", "defaultdict"), n("builtins", "int"), lst(tup(HASHED, i(1))))),
    "attributes by a class": P(build(new(n("types", "SimpleNamespace")), dct((HASHED, i(1))))),
    "whole module with a class as a key": P(build(new(n("torch.nn.modules.linear", "Linear")), sd(x=dct((HASHED, F))))),
    "archive with a class as a key": Z(P(dct((t("model"), dct((HASHED, F)))))),
    "dict literal": P(b"(" + HASHED + i(1) + b"d"),
    "class compared with the magic number": P(COMPARED),
    "class that is compared and kept": P(b"(" + COMPARED + b"1" + COMPARED, 2),
    "two keys that are compared": P(dct((COMPARED, i(1)), (COMPARED, i(2)))),
    "union by reduce": P(call(n("functools", "reduce"), n("operator", "or_"), tup(JOINED, n("builtins", "int")))),
    "union by reduce, the other way": P(
        call(n("functools", "reduce"), n("operator", "or_"), tup(n("builtins", "int"), JOINED))
    ),
    "union by typing": P(call(n("operator", "getitem"), n("typing", "Union"), tup(HASHED, n("builtins", "int")))),
    "optional by typing": P(call(n("operator", "getitem"), n("typing", "Optional"), HASHED)),
    "member of an enum by a class": P(call(n(ML, "Color"), HASHED)),
    "name that the module makes": P(n(ML, "made_when_asked")),
    "class that the module makes": P(n(ML, "MadeWhenAsked")),
    "instance of a class that the module makes": P(build(new(n(ML, "MadeWhenAsked")), sd(a=F))),
    "name that the metaclass makes": P(n(ML, "Asked.Inner")),
    "name that a descriptor makes": P(n(ML, "Holder.Inner")),
    "name of a property of the metaclass": P(n(ML, "WithProperty.Inner")),
    "descriptor of a base": P(n(ML, "FromBase.Inner")),
    "made name in a list": P(lst(n(ML, "made_when_asked"), F)),
    "made name as an attribute": P(build(new(n("argparse", "Namespace")), sd(function=n(ML, "made_when_asked")))),
}
NAME_HARMLESS = {
    "inner class": P(lst(n(ML, "Holder.Plain"), n(ML, "Holder"))),
    "member of an enum": P(call(n(ML, "Color"), i(1))),
    "function": P(lst(n(ML, "mark"))),
    "class as a value": P(dct((t("a"), n(ML, "Holder")))),
    "harmless class as a key": P(dct((n(ML, "Holder"), i(1)))),
}
