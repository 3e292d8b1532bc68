"""Files that reach code through states, storages, comparisons and the order of what the unpickler does.

`STATE_GADGETS` has them by name, `STATE_LIBRARY` the classes that they need beside those of `gadgets`.
"""

from __future__ import annotations

import pickle

from checkpoints.audit.gadgets import (
    CM,
    NS,
    PL,
    SAVE,
    TEN,
    F,
    L,
    P,
    Z,
    adam,
    build,
    call,
    dct,
    i,
    inst,
    lst,
    n,
    new,
    part,
    sd,
    t,
    tup,
)

ORDERED = call(n("collections", "OrderedDict"))
STORAGE = b"(" + t("storage") + n("torch", "FloatStorage") + t("0") + t("cpu") + i(4) + b"tQ"
SG: dict[str, bytes] = {}


def evil(cls: str) -> bytes:
    """An instance of a class of the library that acts."""
    return inst(cls, path=t("marker"))


def remembered(body: bytes) -> bytes:
    """A value that is put into the memo."""
    return body + b"q\x01"


def zipped(body: bytes) -> bytes:
    """A torch archive with one storage of four numbers."""
    return Z(P(body), ("a/data/0", b"\0" * 16))


def tensor(storage: bytes = STORAGE) -> bytes:
    return call(n("torch._utils", "_rebuild_tensor_v2"), storage, i(0), tup(i(4)), tup(i(1)), b"\x89", ORDERED)


def of_type(cls: str, state: bytes) -> bytes:
    """A tensor of a subclass, as torch pickles it."""
    given = tup(STORAGE, i(0), tup(i(4)), tup(i(1)), b"\x89", ORDERED)
    rebuild = n("torch._utils", "_rebuild_tensor_v2")
    return call(n("torch._tensor", "_rebuild_from_type_v2"), rebuild, n(L, cls), given, state)


# ---- a state that is no dictionary, or is given to what is no object of its own
CONV = new(n("torch.nn.modules.conv", "Conv2d"))
TABLES = ((t("_buffers"), b"}"), (t("_modules"), b"}"))
SG["module filled from pairs"] = P(
    build(CONV, lst(tup(t("_parameters"), evil("Cont")), *(tup(key, value) for key, value in TABLES)))
)
SG["module filled from pairs, a default"] = P(
    build(CONV, lst(tup(t("_parameters"), CM(n(L, "plain_function"))), *(tup(key, value) for key, value in TABLES)))
)
SG["module table with a default"] = P(build(CONV, dct((t("_parameters"), CM(n(L, "plain_function"))), *TABLES)))
SCALER = new(n("torch.amp.grad_scaler", "GradScaler"))
SG["pair that is iterated"] = P(build(SCALER, lst(evil("Iter"))))
SG["pair whose key is hashed"] = P(build(SCALER, lst(tup(evil("Hashed"), i(1)))))
SG["OrderedDict with a method"] = P(adam(lst(build(ORDERED, sd(setdefault=SAVE)))))
SG["Counter with a method"] = P(adam(lst(build(call(n("collections", "Counter")), sd(setdefault=PL)))))
SG["OrderedDict with get"] = P(
    build(
        new(n("torch.optim.adam", "Adam")),
        sd(param_groups=lst(sd(params=lst(i(1)))), state=build(ORDERED, sd(get=PL)), defaults=b"}"),
    )
)
SG["storage with a state"] = zipped(
    tensor(build(STORAGE, sd(_untyped_storage=NS(device=t("cpu"), __torch_function__=SAVE))))
)
SG["tensor with a state"] = zipped(build(tensor(), tup(NS(__torch_function__=SAVE), i(0), tup(i(0)), tup(i(1)))))
SG["tensor made alone with a state"] = P(build(TEN, tup(NS(__torch_function__=PL), i(0), tup(i(0)), tup(i(1)))))

# ---- a state whose class looks into it
SG["UUID looks a member up"] = P(build(new(n("uuid", "UUID")), sd(int=i(1), is_safe=evil("Hashed"))))
for _name, _state in {
    "MT19937": sd(key=evil("GetItem"), pos=i(0)),
    "SFC64": sd(state=NS(__array__=SAVE)),
    "Philox": sd(counter=evil("GetItem"), key=evil("GetItem")),
}.items():
    SG[f"state of {_name}"] = P(
        build(
            call(n("numpy.random._pickle", "__bit_generator_ctor"), t(_name)), sd(bit_generator=t(_name), state=_state)
        )
    )
SG["state of RandomState"] = P(
    build(
        call(n("numpy.random._pickle", "__randomstate_ctor"), t("MT19937")),
        sd(
            bit_generator=t("MT19937"),
            state=sd(key=lst(*[i(1)] * 624), pos=i(0)),
            has_gauss=i(0),
            gauss=evil("Float"),
        ),
    )
)
DOUBLE = build(
    call(n("numpy", "dtype"), t("f8"), b"\x89", b"\x88"), tup(i(3), t("<"), b"N", b"N", b"N", i(-1), i(-1), i(0))
)
MASKED = call(
    n("numpy.ma.core", "_mareconstruct"),
    n("numpy.ma.core", "MaskedArray"),
    n("numpy", "ndarray"),
    tup(i(0)),
    t("b"),
)
for _name, _fill in {"array": NS(__array__=SAVE), "float": evil("Float")}.items():
    SG[f"fill value as {_name}"] = P(
        build(MASKED, tup(i(1), tup(i(1)), DOUBLE, b"\x89", b"C\x08" + b"\0" * 8, b"C\x01\0", _fill))
    )

# ---- what is used, and then replaced
SG["attribute replaced later"] = P(
    adam(lst(build(new(n("types", "SimpleNamespace")), remembered(sd(setdefault=SAVE)))))
    + b"0h\x01"
    + t("setdefault")
    + b"Ns"
)
SG["groups replaced later"] = P(
    build(
        new(n("torch.optim.adam", "Adam")),
        remembered(sd(param_groups=lst(NS(setdefault=PL)), state=b"}", defaults=b"}")),
    )
    + b"0h\x01"
    + t("param_groups")
    + b"]s"
)


# ---- dictionaries of what is no pair
def user_list(*values: bytes) -> bytes:
    return build(new(n("collections", "UserList")), sd(data=lst(*values)))


for _name in ("builtins.dict", "collections.OrderedDict"):
    _pairs = lst(user_list(t("x"), i(1)), user_list(t("append"), n(L, "plan")))
    SG[f"{_name} of lists plants append"] = P(
        build(new(n(L, "Plain")), call(n(*_name.split(".")), _pairs)) + t("marker") + b"a"
    )

# ---- known types that act when they are called
SG["memmap makes a file"] = P(adam(lst(NS(setdefault=part(n("numpy", "memmap"), t("marker"), t("uint8"), t("w+"))))))


# ---- the old format: sources that are compared, and pickles around the object
def named(module: str, name: str) -> bytes:
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n"


def old(cls: str) -> bytes:
    """An instance of a class that acts, in protocol 2."""
    return build(named(L, cls) + b")\x81", sd(path=t("marker")))


def old_file(body: bytes, *, version: bytes | None = None, keys: bytes = b"]") -> bytes:
    """A file in the format of torch before 1.6."""
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    head = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + (version or pickle.dumps(1001, 2)) + pickle.dumps(system, 2)
    return head + P(body, 2) + P(keys, 2)


LINEAR = named("torch.nn.modules.linear", "Linear")
SG["source is tested"] = old_file(b"(" + t("module") + LINEAR + old("Bool") + t("x") + b"tQ")
SG["length of a source"] = old_file(b"(" + t("module") + LINEAR + t("x") + old("Len") + b"tQ")
SG["source is compared"] = old_file(b"(" + t("module") + LINEAR + t("f.py") + old("Eq") + b"tQ")
SG["source is written as a patch"] = old_file(b"(" + t("module") + named(L, "Patches") + t("f.py") + t("x") + b"tQ")
SG["keys are iterated"] = old_file(b"}", keys=old("Iter"))
SG["a key is hashed"] = old_file(b"}", keys=lst(old("Hashed")))
SG["version is compared"] = old_file(b"}", version=P(old("Eq"), 2))
SG["the value is compared"] = P(evil("Eq"))
SG["the value is compared, by __ne__"] = P(evil("Ne"))
SG["the value compares what it holds"] = P(build(new(n("collections", "UserList")), sd(data=evil("Eq"))))

# ---- subclasses of tensors
SG["subclass whose data is set"] = zipped(of_type("Follows", sd(data=tensor())))
SG["subclass as a parameter"] = zipped(
    call(n("torch._utils", "_rebuild_parameter"), of_type("Follows", b"}"), b"\x89", ORDERED)
)
SG["property of a subclass"] = zipped(of_type("WithProperty", sd(spam=t("marker"))))
SG["wrapper as a parameter"] = P(
    call(
        n("torch._utils", "_rebuild_parameter"),
        call(
            n("torch._utils", "_rebuild_wrapper_subclass"),
            n(L, "Dispatches"),
            n("torch", "float32"),
            tup(i(1)),
            tup(i(1)),
            i(0),
            n("torch", "strided"),
            t("cpu"),
            b"\x89",
        ),
        b"\x89",
        ORDERED,
    )
)
SG["property named __dict__"] = P(build(new(n(L, "OwnDict")), sd(a=F)))
STATE_GADGETS = SG

STATE_LIBRARY = """
class Eq:
    def __eq__(self, o): plan(self.path); return False
    __hash__ = None
class Ne:
    def __ne__(self, o): plan(self.path); return True
class GetItem:
    def __getitem__(self, k): plan(self.path); return 1
class Len:
    def __len__(self): plan(self.path); return 1
class Plain: pass
class Patches:
    dump_patches = True
def plain_function():
    plan("marker"); return 1
class Follows(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *a, **k):
        plan("marker")
        return super().__torch_function__(*a, **k)
class Dispatches(torch.Tensor):
    @classmethod
    def __torch_dispatch__(cls, f, types, args=(), kwargs=None):
        plan("marker")
        raise RuntimeError
class WithProperty(torch.Tensor):
    @property
    def spam(self): return 1
    @spam.setter
    def spam(self, v): plan(v)
class OwnDict:
    @property
    def __dict__(self): plan("marker"); return {}
"""
