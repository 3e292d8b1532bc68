"""Which imports a checkpoint may ask for.

A pickle names the functions it would call. Three answers: `data` (torch's own rebuilding functions, containers,
numbers), `dangerous` (reaches the system or runs code: no checkpoint needs it), and everything between: somebody's
class, which `torch.load(weights_only=True)` would refuse and which is therefore named in a warning.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable

from nantrap.checkpoints.audit.verdict import Problem

_DATA = re.compile(
    r"""
    torch\.(_utils\._rebuild_\w+ | _tensor\._rebuild_from_type(_v2)? | serialization\._get_layout
      | \w+Storage | storage\.\w+Storage | Size | device | Tensor | dtype | Generator | torch_version\.TorchVersion
      | _C\._\w+Type | [a-z]+\d+(_\w+)? | bool | half | float | double | int | long | short | strided | sparse_\w+
      | per_(tensor|channel)_\w+ | nn\.parameter\.\w+ | (nn\.modules|optim)\.\w+\._?[A-Z]\w*
      | distributed\.(_tensor|tensor|_shard|checkpoint|fsdp|device_mesh)\.([a-z_]+\.)*_?[A-Z]\w*)
    | __torch__\.[\w.]+
    | collections\.(OrderedDict|defaultdict|Counter|deque)
    | builtins\.(set|frozenset|list|dict|tuple|int|float|bool|str|bytes|bytearray|complex|slice|range|object)
    | _codecs\.encode | copyreg\._reconstructor
    | numpy\.(_core|core)\.(multiarray\.(_reconstruct|scalar)|numeric\._frombuffer)
    | numpy\.(ndarray|dtype|dtypes\.\w+|bool_?|u?int\d+|float\d+|complex\d+|str_)
    | numpy\.random\.(_pickle\.__\w+_ctor|\w+\.[A-Z]\w*)
    | (pathlib|pathlib\._local)\.(Pure)?(Posix|Windows)?Path | datetime\.\w+ | argparse\.Namespace
    | types\.SimpleNamespace | uuid\.UUID | decimal\.Decimal | fractions\.Fraction
    | (lightning|pytorch_lightning|lightning_fabric)\.[\w.]+\.AttributeDict
    | transformers\.(training_args|trainer_utils|trainer_pt_utils|debug_utils)\.[A-Z]\w*
    | accelerate\.(state|utils\.dataclasses)\.[A-Z]\w*
    """,
    re.VERBOSE,
)

_CLASSES_OF_THE_STANDARD_LIBRARY = re.compile(
    r"(collections|enum|random|functools\.partial|dataclasses|typing|string|array|time\.struct_time|logging\.Logger)\b.*"
)

_DANGEROUS = re.compile(
    r"""
    (torch\.(load|storage\._load_from_bytes|hub|jit|package|utils\.(cpp_extension|model_zoo|_config_module|collect_env|bottleneck)|serialization\.load
      |_dynamo|_inductor|multiprocessing|distributed\.(run|launch|elastic|rpc)|compile|classes\.load_library|ops\.load_library)
    | numpy\.(load|fromfile|memmap|save|savez|testing|f2py|distutils|lib\.npyio)
    | pip|setuptools|distutils|pkg_resources|dill|cloudpickle|joblib|jsonpickle|yaml|requests|urllib3|httpx|aiohttp
    | paramiko|IPython|fsspec|pandas\.(read_pickle|eval)|keras\.(models|layers\.Lambda)|tensorflow)(\..*|$)
    """,
    re.VERBOSE,
)


def is_data(name: str) -> bool:
    """Whether the import is one that only builds data."""
    return _DATA.fullmatch(name) is not None


def is_dangerous(name: str) -> bool:
    """Whether the import could run code or reach the system, as most of the standard library can."""
    if is_data(name) or _CLASSES_OF_THE_STANDARD_LIBRARY.fullmatch(name):
        return False
    root = name.partition(".")[0]
    of_python = root in sys.stdlib_module_names or root in ("nt", "posix")  # posix is nt on the other side
    return of_python or _DANGEROUS.match(name) is not None


def problems_of_imports(names: Iterable[str]) -> tuple[Problem, ...]:
    """At most one error and one warning: the dangerous imports, and the unknown ones."""
    strange = [name for name in dict.fromkeys(names) if not is_data(name)]
    dangerous = tuple(name for name in strange if is_dangerous(name))
    unknown = tuple(name for name in strange if not is_dangerous(name))
    problems = []
    if dangerous:
        problems.append(
            Problem(
                "NT910",
                f"the pickle wants to run {_join(dangerous)}; it was read without running anything",
                imports=dangerous,
            )
        )
    if unknown:
        problems.append(
            Problem(
                "NT910",
                f"the pickle wants to import {_join(unknown)}; its tensors were read without it",
                severity="warning",
                imports=unknown,
            )
        )
    return tuple(problems)


def _join(names: tuple[str, ...], shown: int = 4) -> str:
    text = ", ".join(names[:shown])
    return text if len(names) <= shown else f"{text} and {len(names) - shown} more"
