# Run by Pythons without torch; every object as people write it
"""Things people save, without torch. Usage: corpus.py DIR. Writes NAME-PROTO.pkl (plain pickles)."""

import argparse, array, collections, dataclasses, datetime, decimal, enum, fractions, functools, ipaddress, itertools, logging, operator, os, pathlib, pickle, random, re, string, sys, time, types, typing, uuid, zoneinfo


class Color(enum.Enum):
    RED = 1
    BLUE = "b"


class Level(enum.IntEnum):
    LOW = 1


class Perm(enum.Flag):
    R = 1
    W = 2


class StrE(str, enum.Enum):
    A = "a"


class Outer:
    class Inner:
        def __init__(self):
            self.x = 1

    class Kind(enum.Enum):
        A = 1

    class Deep:
        class Deeper(enum.Enum):
            Z = 3

    @staticmethod
    def st(x):
        return x

    @classmethod
    def cm(cls):
        return cls

    def method(self):
        return 1


@dataclasses.dataclass
class Config:
    lr: float = 0.1
    color: Color = Color.RED
    path: pathlib.Path = pathlib.Path("a/b")
    nested: typing.Optional["Config"] = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int = 1


if sys.version_info >= (3, 10):

    @dataclasses.dataclass(slots=True)
    class Slotted:
        a: int = 1
        b: str = "x"

    @dataclasses.dataclass(frozen=True, slots=True)
    class FrozenSlotted:
        a: int = 1


class Point(typing.NamedTuple):
    x: int
    y: int


P2 = collections.namedtuple("P2", "a b")


class AttrDict(dict):
    def __getattr__(self, k):
        return self[k]


class MyList(list):
    pass


class MyOD(collections.OrderedDict):
    pass


class MyDD(collections.defaultdict):
    pass


class MyStr(str):
    pass


class MyInt(int):
    pass


class MySet(set):
    pass


class MyExc(Exception):
    pass


class WithSlots:
    __slots__ = ("a", "b")

    def __init__(self):
        self.a = 1
        self.b = 2


class WithState:
    def __getstate__(self):
        return {"x": 1}

    def __setstate__(self, s):
        self.__dict__.update(s)


class GetNew:
    def __new__(cls, a):
        o = object.__new__(cls)
        o.a = a
        return o

    def __getnewargs__(self):
        return (self.a,)


class GetNewEx:
    def __new__(cls, *, a=1):
        o = object.__new__(cls)
        o.a = a
        return o

    def __getnewargs_ex__(self):
        return ((), {"a": 1})


def func(x):
    return x


def make():
    o = Outer()
    lg = logging.getLogger("train")
    objs = dict(
        enum=Color.RED,
        enum2=Color.BLUE,
        intenum=Level.LOW,
        flag=Perm.R | Perm.W,
        strenum=StrE.A,
        nested_enum=Outer.Kind.A,
        deep_enum=Outer.Deep.Deeper.Z,
        nested_class=Outer.Inner,
        nested_instance=Outer.Inner(),
        enum_class=Color,
        static=Outer.st,
        classm=Outer.cm,
        bound=o.method,
        unbound=Outer.method,
        function=func,
        cls=Config,
        config=Config(),
        config_nested=Config(nested=Config()),
        frozen=Frozen(),
        slotted=Slotted(),
        frozen_slotted=FrozenSlotted(),
        namedtuple=Point(1, 2),
        namedtuple2=P2(1, 2),
        attrdict=AttrDict(a=1),
        mylist=MyList([1]),
        myod=MyOD(a=1),
        mydd=MyDD(int, a=1),
        mystr=MyStr("a"),
        myint=MyInt(3),
        myset=MySet([1]),
        myexc=MyExc("a"),
        slots=WithSlots(),
        state=WithState(),
        getnew=GetNew(1),
        getnewex=GetNewEx(),
        defaultdict=collections.defaultdict(int, a=1),
        defaultdict2=collections.defaultdict(list),
        dd3=collections.defaultdict(functools.partial(collections.defaultdict, int)),
        range=range(3),
        nonetype=type(None),
        optional=typing.Optional[int],
        union=typing.Union[int, str],
        generic=list[int],
        dictgen=typing.Dict[str, typing.List[int]],
        callable_=typing.Callable[[int], str],
        literal=typing.Literal["a", "b"],
        anyt=typing.Any,
        pattern=re.compile("a.*", re.I),
        logger=lg,
        rootlogger=logging.getLogger(),
        now=datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc),
        delta=datetime.timedelta(1),
        date=datetime.date(2024, 1, 1),
        tm=datetime.time(1, 2),
        tz=datetime.timezone(datetime.timedelta(hours=1)),
        zone=zoneinfo.ZoneInfo("UTC"),
        path=pathlib.Path("a/b"),
        purepath=pathlib.PurePosixPath("a"),
        winpath=pathlib.PureWindowsPath("a"),
        namespace=argparse.Namespace(lr=0.1, betas=(0.9, 0.99)),
        simple=types.SimpleNamespace(a=1),
        uid=uuid.UUID(int=5),
        dec=decimal.Decimal("1.5"),
        frac=fractions.Fraction(1, 2),
        rnd=random.Random(1),
        rndstate=random.Random(1).getstate(),
        arr=array.array("d", [1.0]),
        count=itertools.count(3),
        attrgetter=operator.attrgetter("a"),
        itemgetter=operator.itemgetter(0),
        methodcaller=operator.methodcaller("x"),
        partial=functools.partial(func, 1),
        partial2=functools.partial(int, base=2),
        slice_=slice(1, 2),
        cplx=1j,
        ba=bytearray(b"abc"),
        by=b"abc",
        fset=frozenset([1, 2]),
        set_={1, 2},
        ell=...,
        notimp=NotImplemented,
        counter=collections.Counter("ab"),
        deque=collections.deque([1], maxlen=3),
        chainmap=collections.ChainMap({"a": 1}),
        od=collections.OrderedDict(a=1),
        ud=collections.UserDict(a=1),
        ip=ipaddress.ip_address("1.1.1.1"),
        net=ipaddress.ip_network("10.0.0.0/8"),
        exc=ValueError("x"),
        exc2=KeyError("k"),
        oserr=FileNotFoundError(2, "x"),
        template=string.Template("a"),
        structtime=time.gmtime(0),
        strupper=str.upper,
        listappend=[].append,
        lenf=len,
        sortedf=sorted,
        reflag=re.IGNORECASE,
        missing=dataclasses.MISSING,
        nested_plain={"a": [{"b": (1, 2, {"c": None})}]},
        floats=[0.5] * 10,
        key_tuple={(1, 2): 3, ("a", ("b",)): 4},
        key_frozen={frozenset([1]): 2},
        keyenum={Color.RED: 1},
        bigint=10**50,
        true=True,
        uni="é\u2028",
        inf_best=float("inf"),
        dictfn={"act": func},
        itr=iter([1, 2]),
        mathf=__import__("math").sqrt,
        jsond=__import__("json").dumps,
    )
    if sys.version_info >= (3, 10):
        objs["pipe"] = int | str
    if sys.version_info >= (3, 11):
        objs["strenum2"] = enum.StrEnum("SE", "a b", module="__main__").a
        globals()["SE"] = type(objs["strenum2"])
    return objs


if __name__ == "__main__":
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    n = bad = 0
    for name, obj in make().items():
        for proto in (2, 3, 4, 5):
            try:
                raw = pickle.dumps({"state": {"x": [1.0]}, "value": obj}, proto)
            except Exception as e:
                bad += 1
                print(name, proto, e)
                continue
            (out / f"{name}-{proto}.pkl").write_bytes(raw)
            n += 1
    print(sys.version.split()[0], n, bad)
