"""What a pickle would run, make or name when it is loaded."""
# ruff: noqa: E501 - one pickle a line

from __future__ import annotations

import pickle
from typing import Any

import pytest

from nantrap.checkpoints.audit.pickles import read_pickle
from nantrap.checkpoints.audit.trust import Imports, judge, problems_of_imports


def named(module: str, name: str) -> bytes:
    """A pickle that names a global and does nothing with it."""
    return (
        b"\x80\x04\x8c"
        + bytes([len(module)])
        + module.encode()
        + b"\x8c"
        + bytes([len(name)])
        + name.encode()
        + b"\x93."
    )


def called(module: str, name: str, arguments: bytes = b"\x8c\x01x\x85", how: bytes = b"R") -> bytes:
    """A pickle that calls a global."""
    return named(module, name)[:-1] + arguments + how + b"."


def verdict(raw: bytes) -> str:
    """`data`, `named`, `unknown`, `unclear` or `run`."""
    imports = judge(read_pickle(raw))
    kinds = {"run": imports.run, "unclear": imports.unclear, "unknown": imports.unknown, "named": imports.named}
    return next((kind for kind, found in kinds.items() if found), "data")


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch", "float32"), ("torch", "FloatStorage"), ("torch.storage", "UntypedStorage"), ("torch", "float8_e4m3fn"),
        ("collections", "OrderedDict"), ("torch.nn.modules.linear", "Linear"), ("numpy", "dtype"), ("torch", "Size"),
        ("numpy._core.multiarray", "_reconstruct"), ("pathlib", "PosixPath"), ("builtins", "set"), ("datetime", "datetime"),
        ("torch.distributed.checkpoint.metadata", "MetadataIndex"), ("argparse", "Namespace"),
        ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT"),
        ("transformers.training_args", "TrainingArguments"), ("lightning.fabric.utilities.data", "AttributeDict"),
        ("typing", "Any"), ("builtins", "str.upper"), ("omegaconf.dictconfig", "DictConfig"),
    ],
)  # fmt: skip
def test_data_may_be_named(module: str, name: str) -> None:
    assert verdict(named(module, name)) == "data"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"), ("posix", "system"), ("nt", "system"), ("subprocess", "Popen"), ("builtins", "eval"),
        ("builtins", "exec"), ("builtins", "__import__"), ("builtins", "open"), ("sys", "modules"), ("io", "FileIO"),
        ("importlib", "import_module"), ("runpy", "run_path"), ("socket", "socket"), ("shutil", "rmtree"),
        ("pickle", "loads"), ("webbrowser", "open"), ("ctypes", "CDLL"), ("torch", "load"), ("torch.hub", "load"),
        ("torch.storage", "_load_from_bytes"), ("torch.jit", "load"), ("numpy", "load"), ("pip", "main"),
        ("urllib.request", "urlopen"), ("code", "interact"), ("dill._dill", "_load_type"), ("antigravity", "x"),
        ("torch.utils.cpp_extension", "load_inline"), ("random", "_os"), ("random", "_os.system"), ("idlelib.idle", "x"),
        ("dataclasses", "builtins.eval"), ("torch.serialization", "os.system"), ("collections", "_sys.modules"),
        ("torch.distributed.checkpoint.filesystem", "torch._strobelight.cli_function_profiler.subprocess.Popen"),
        ("mylib.config", "os.system"), ("mylib", "Config.__init__"), ("mylib", "Config.__globals__"), ("", "x"),
        ("collections", "OrderedDict.__reduce__"), ("a b", "C"), ("sympy", "S"), ("torch._dynamo", "x"),
        ("logging", "Logger.manager.x"), ("nantrap.checkpoints", "x"),
    ],
)  # fmt: skip
def test_what_reaches_the_system_must_not_even_be_named(module: str, name: str) -> None:
    assert verdict(named(module, name)) == "run"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("math", "sqrt"), ("torch.nn.functional", "relu"), ("builtins", "len"), ("enum", "Enum"),
    ],
)  # fmt: skip
def test_what_is_known_and_only_named_is_a_note(module: str, name: str) -> None:
    assert verdict(named(module, name)) == "named"


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("mylib.config", "Config"), ("__main__", "Args"), ("__main__", "helper"), ("mylib", "Outer.Inner"),
        ("mylib", "Outer.method"), ("mylib", "made_on_demand"),
    ],
)  # fmt: skip
def test_what_is_unknown_is_a_warning_if_it_is_only_named(module: str, name: str) -> None:
    """Naming it imports its module, whose `__getattr__`, metaclass or descriptor may make what is named."""
    assert verdict(named(module, name)) == "unknown"


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(called("mylib", "run_me"), id="a function"),
        pytest.param(called("mylib", "Outer.run_me"), id="a method"),
        pytest.param(called("torch.nn.functional", "relu"), id="a function of torch"),
        pytest.param(called("torch", "from_file"), id="writes a file"),
        pytest.param(called("torch.utils.data.datapipes.datapipe", "X", how=b"\x81"), id="unpickles its state"),
        pytest.param(called("builtins", "type", b"\x8c\x01x)}\x87"), id="makes a class"),
        pytest.param(called("functools", "reduce"), id="calls its argument"),
        pytest.param(called("builtins", "map", b"\x8c\x01x)\x86"), id="calls when it is iterated"),
        pytest.param(called("_codecs", "encode", b"\x8c\x01x\x8c\x03zip\x86"), id="another codec"),
        pytest.param(called("numpy.core", "_ufunc_reconstruct", b"\x8c\x02os\x8c\x06system\x86"), id="imports"),
        pytest.param(b"\x80\x02ccommands\ngetoutput\nX\x02\x00\x00\x00id\x85R.", id="a name of Python 2"),
        pytest.param(b"\x80\x02c__builtin__\neval\nX\x01\x00\x00\x001\x85R.", id="builtins of Python 2"),
        pytest.param(b"\x80\x02(X\x02\x00\x00\x00idimylib\nrun\n.", id="INST"),
        pytest.param(b"\x80\x02(cmylib\nrun\nX\x02\x00\x00\x00ido.", id="OBJ"),
        pytest.param(b"\x80\x02cmylib\nrun\nX\x02\x00\x00\x00id\x85\x81.", id="NEWOBJ"),
        pytest.param(b"\x80\x04\x8c\x05mylib\x8c\x01C\x93)}\x92.".replace(b"\x01C", b"\x01c"), id="NEWOBJ_EX"),
        pytest.param(b"\x80\x02cmylib\nConfig\n}X\x01\x00\x00\x00aK\x01sb.", id="a class is changed"),
        pytest.param(b"\x80\x02cmylib\nConfig\n)\x81}X\x0c\x00\x00\x00__setstate__cmylib\nrun\nsb.", id="a planted hook"),
        pytest.param(b"\x80\x02ctorch\nregistry\nK\x01K\x02s.", id="items of a global"),
        pytest.param(b"\x80\x02ctorch\nregistry\nK\x01a.", id="appends to a global"),
        pytest.param(b"\x80\x02\x82\x07.", id="the extension registry"),
        pytest.param(
            b"\x80\x02c__builtin__\ngetattr\ncmylib\nOuter\nX\x03\x00\x00\x00run\x86RX\x01\x00\x00\x00x\x85R.",
            id="a method through getattr",
        ),
        pytest.param(
            b"\x80\x02c__builtin__\ngetattr\nctorch.serialization\nos\nX\x06\x00\x00\x00system\x86RX\x02\x00\x00\x00id\x85R.",
            id="a module through getattr",
        ),
        *(pytest.param(called("__main__", name), id=f"{name} of the script") for name in ("Popen", "FileIO", "CDLL", "Process")),
        pytest.param(
            b"\x80\x02cfunctools\npartial\ncmylib\nrun\n\x85Rq\x01)R0h\x01(cmylib\nC.__new__\n(cmylib\nC\nt}Ntb.",
            id="a partial that is called before it gets its state",
        ),
        pytest.param(b"\x80\x02cpsutil\nPopen\nX\x02\x00\x00\x00id\x85R.", id="a class that runs its argument"),
        pytest.param(
            b"\x80\x02ctorch._tensor\n_rebuild_from_type_v2\n(cmylib\nrun\nctorch\nTensor\n)Nt R.".replace(b" ", b""),
            id="a function that calls its argument",
        ),
    ],
)  # fmt: skip
def test_what_would_be_called_is_an_error(raw: bytes) -> None:
    assert verdict(raw) == "run"


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(called("__main__", "Config", b")", b"\x81"), id="an instance"),
        pytest.param(called("mylib", "Outer.Config", b")", b"\x81"), id="of a nested class"),
        pytest.param(called("mylib", "Color", b"K\x01\x85"), id="a member of an enum"),
        pytest.param(
            b"\x80\x02ccopy_reg\n_reconstructor\ncmylib\nConfig\nc__builtin__\nobject\nN\x87R.", id="protocol 1"
        ),
    ],
)
def test_an_instance_of_an_unknown_class_is_a_warning(raw: bytes) -> None:
    assert verdict(raw) == "unknown"


def test_one_error_one_warning_and_one_note_say_what_was_wanted() -> None:
    imports = Imports({"os.system": "is called"}, ("a.B", "a.C", "a.D", "a.E", "a.F"), ("mylib.run\x1b[2J",))
    error, warning, note = problems_of_imports(imports)
    assert (error.code, error.severity, error.imports) == ("NT910", "error", ("os.system",))
    assert error.message == "loading it would run os.system; it was read without running anything"
    assert warning.severity == "warning"
    assert warning.message == (
        "loading it needs a.B, a.C, a.D, a.E and 1 more, whose code nantrap does not know; "
        "the tensors were read without it"
    )
    assert note.message == "loading it imports mylib.run\\x1b[2J, and runs nothing else of that"
    assert note.severity == "note"
    assert problems_of_imports(Imports({})) == ()


class Shares:
    """A function kept with the data, as a configuration does."""

    def __reduce__(self) -> Any:
        return dict, ([("key", len)],)


def test_a_function_that_is_kept_is_a_note() -> None:
    assert verdict(pickle.dumps({"config": {"key": len}})) == "named"
    assert verdict(pickle.dumps(Shares())) == "named"
