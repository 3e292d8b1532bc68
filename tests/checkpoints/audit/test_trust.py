"""Which imports are data, which are somebody's, and which are dangerous."""

from __future__ import annotations

import pytest

from nantrap.checkpoints.audit.trust import is_dangerous, is_data, problems_of_imports


@pytest.mark.parametrize(
    "name",
    [
        "torch._utils._rebuild_tensor_v2", "torch.FloatStorage", "torch.storage.UntypedStorage", "torch.float32",
        "torch.float8_e4m3fn", "torch.bfloat16", "collections.OrderedDict", "torch.nn.modules.linear.Linear",
        "numpy._core.multiarray._reconstruct", "numpy.dtype", "torch.Size", "torch.device", "pathlib.PosixPath",
        "torch.distributed.checkpoint.metadata.MetadataIndex", "builtins.set", "argparse.Namespace",
        "transformers.training_args.TrainingArguments", "lightning.fabric.utilities.data.AttributeDict",
    ],
)  # fmt: skip
def test_data(name: str) -> None:
    assert is_data(name)
    assert not is_dangerous(name)


@pytest.mark.parametrize(
    "name",
    [
        "os.system", "posix.system", "nt.system", "subprocess.Popen", "builtins.eval", "builtins.exec",
        "builtins.getattr", "builtins.__import__", "builtins.open", "sys.modules", "importlib.import_module",
        "runpy.run_path", "socket.socket", "shutil.rmtree", "pickle.loads", "webbrowser.open", "ctypes.CDLL",
        "operator.attrgetter", "torch.load", "torch.storage._load_from_bytes",
        "torch.hub.load", "torch.jit.load", "numpy.load", "pip.main", "urllib.request.urlopen", "code.interact",
        "copyreg.extension 7", "dill._dill._load_type", "torch.utils.cpp_extension.load_inline",
    ],
)  # fmt: skip
def test_dangerous(name: str) -> None:
    assert is_dangerous(name)
    assert not is_data(name)


@pytest.mark.parametrize(
    "name", ["mylib.config.Config", "__main__.Args", "omegaconf.dictconfig.DictConfig", "enum.Enum"]
)
def test_somebodys(name: str) -> None:
    assert not is_dangerous(name)
    assert not is_data(name)


def test_one_error_and_one_warning_name_what_was_wanted() -> None:
    error, warning = problems_of_imports(
        ["torch.float32", "os.system", "mylib.Config", "os.system", "a.B", "a.C", "a.D", "a.E"]
    )
    assert (error.code, error.severity, error.imports) == ("NT910", "error", ("os.system",))
    assert error.message == "the pickle wants to run os.system; it was read without running anything"
    assert warning.severity == "warning"
    assert warning.message == (
        "the pickle wants to import mylib.Config, a.B, a.C, a.D and 1 more; its tensors were read without it"
    )
    assert problems_of_imports(["torch.float32"]) == ()
