"""Names in the source of a class: what makes classes, what changes nothing outside an object, what reaches the system.

`class_sources` reads the code that loading a checkpoint would run, and compares the names in it with these tables.
"""

from __future__ import annotations

from typing import Final

from nantrap.checkpoints.audit.known_names import CLASSES


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


TORCH_NAMES: Final = frozenset(
    name.qualname.rpartition(".")[2] for name in CLASSES if name.module.startswith("torch")
) | _words("Dataset IterableDataset Sampler Function")
METACLASSES: Final = _words("ABCMeta EnumMeta EnumType NamedTupleMeta type")
CLASS_MAKERS: Final = _words(
    "namedtuple collections.namedtuple NamedTuple typing.NamedTuple Enum enum.Enum IntEnum enum.IntEnum StrEnum "
    "enum.StrEnum Flag enum.Flag IntFlag enum.IntFlag make_dataclass dataclasses.make_dataclass"
)
BUILTINS: Final = _words(
    "object dict list tuple set frozenset int float complex bool str bytes bytearray property type Exception "
    "BaseException ValueError TypeError RuntimeError KeyError IndexError LookupError AttributeError ArithmeticError "
    "AssertionError ImportError NotImplementedError OSError StopIteration UserWarning Warning RuntimeWarning "
    "DeprecationWarning FutureWarning ZeroDivisionError OverflowError MemoryError TimeoutError ConnectionError "
    "PermissionError FileNotFoundError KeyboardInterrupt"
)
PLAIN_BASES: Final = frozenset(f"builtins.{name}" for name in BUILTINS) | _words(
    "enum.Enum enum.IntEnum enum.StrEnum enum.Flag enum.IntFlag enum.EnumMeta abc.ABC typing.NamedTuple typing.Generic "
    "typing.Protocol typing.TypedDict typing_extensions.Protocol typing_extensions.TypedDict typing.MutableMapping "
    "typing.Mapping typing.Sequence typing.Dict typing.List typing.OrderedDict collections.abc.Mapping "
    "collections.abc.MutableMapping collections.abc.Sequence collections.abc.MutableSequence collections.abc.Set "
    "collections.abc.Iterator collections.abc.Iterable collections.abc.Callable collections.abc.Hashable "
    "collections.UserDict collections.UserList contextlib.ContextDecorator contextlib.AbstractContextManager "
    "json.JSONEncoder pydantic.BaseModel pydantic.main.BaseModel numpy.ndarray torch.Tensor torch.nn.Module "
    "torch.nn.Parameter torch.autograd.Function"
)
PLAIN_BUILTINS: Final = BUILTINS | _words(
    "super len isinstance issubclass hasattr getattr setattr delattr zip enumerate range sorted reversed min max sum "
    "abs any all iter next id repr format callable round hash vars slice map filter staticmethod classmethod"
)
PLAIN_CALLS: Final = _words(
    "threading.Lock threading.RLock threading.local threading.Event threading.Condition logging.getLogger copy.copy "
    "copy.deepcopy warnings.warn collections.OrderedDict collections.defaultdict collections.deque collections.Counter "
    "weakref.ref weakref.WeakKeyDictionary weakref.WeakValueDictionary weakref.WeakSet functools.partial re.compile "
    "math.isnan math.isinf math.isfinite math.floor math.ceil math.log time.time torch.Generator torch.device "
    "torch.tensor torch.zeros torch.ones torch.empty torch.Size torch.is_tensor numpy.array numpy.asarray numpy.zeros "
    "numpy.ones numpy.empty typing.cast dataclasses.fields dataclasses.asdict inspect.signature"
)
PLAIN_METHODS: Final = _words(
    "update get pop popitem items keys values setdefault append extend add insert copy clear discard remove index "
    "count sort reverse startswith endswith split rsplit join format lower upper strip lstrip rstrip replace partition "
    "rpartition removesuffix removeprefix encode decode isdigit union intersection difference issubset issuperset "
    "register_buffer register_parameter add_module requires_grad_ set_extra_state info debug warning warning_once error"
)
SYSTEM_METHODS: Final = _words(
    "system popen Popen check_call check_output unlink rmtree rmdir mkdir makedirs removedirs rename write write_text "
    "write_bytes writelines truncate symlink symlink_to chmod chown exec_module load_module import_module urlopen "
    "urlretrieve sendall connect execv execve spawn fork kill putenv eval exec from_file load_library"
)
