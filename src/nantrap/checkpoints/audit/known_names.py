"""Names that checkpoints have, as exact pairs of module and qualified name, and names that no checkpoint needs.

They are listed in `known_names.cfg`, which says what each list is; here they become sets.
"""

from __future__ import annotations

import configparser
import pkgutil
from typing import Final

from nantrap.checkpoints.audit.pickles import Name


def _read() -> configparser.ConfigParser:
    lists = configparser.ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
    lists.optionxform = str  # type: ignore[assignment, method-assign] # names keep their capital letters
    lists.read_string((pkgutil.get_data("nantrap.checkpoints.audit", "known_names.cfg") or b"").decode())
    return lists


_LISTS: Final = _read()


def _pairs(section: str) -> frozenset[Name]:
    return frozenset(Name(module, name) for module, names in _LISTS.items(section) for name in names.split())


def _words(key: str) -> frozenset[str]:
    return frozenset(_LISTS["words"][key].split())


LOADER: Final = "torch.storage._load_from_bytes"
LOADER_NAME: Final = Name("torch.storage", "_load_from_bytes")

VALUES: Final = _pairs("values")
"""Constants and types that data name. Calling them is not expected."""
CALLABLE_SCALARS: Final = _pairs("callable scalars")
"""numpy's numbers, which may be made from plain values."""
CLASSES: Final = _pairs("torch classes") | _pairs("classes")
"""Classes whose constructor and state setter set attributes and do nothing else."""
FUNCTIONS: Final = _pairs("functions")
"""Functions that build data from plain arguments."""
PURE: Final = _pairs("pure")
"""Functions that compute from what they are given: they may be kept in a checkpoint, whoever calls them."""
ACTS: Final = _pairs("acts")
"""Classes among these that join a process group while they are loaded."""

_TOUCHING: Final = _words("touching modules")
TOUCHES: Final = frozenset(
    name
    for name in CLASSES
    if name.module in _TOUCHING
    or name.module.startswith(("transformers.tokenization", "tokenizers", "numpy"))
    or (
        name.module not in ("torch.optim.lr_scheduler", "torch.optim.swa_utils")
        and name.module.startswith(
            ("torch.optim", "torch.nn.modules.rnn", "torch.ao.", "torch.distributed", "torch.utils.data")
        )
    )
)
"""Classes among these whose `__setstate__` calls methods of the values in its state: these must be known."""

_CONSTRUCTED: Final = _words("constructed modules")
CONSTRUCTED: Final = _pairs("constructed") | {n for n in CLASSES if n.module.partition(".")[0] in _CONSTRUCTED}
"""Classes among these that a pickler calls with arguments. All others are made by `cls.__new__` and filled."""

HARMLESS_MODULES: Final = _words("harmless modules")
"""Modules of the standard library whose functions may be named, as a sort key is. None reaches the system."""
HARMLESS_BUILTINS: Final = _words("harmless builtins")
GADGETS: Final = _words("gadgets")
"""Packages with many names that run commands, load code or open files: only known names pass."""
MODULES_THAT_RUN: Final = frozenset(
    f"{root}.{module}" for root in ("torch", "numpy") for module in _words(f"{root} that runs")
)
"""Modules of torch and numpy, with all below them, in which names that run commands or load code are found."""
RUNS: Final = frozenset(Name(*full.rpartition(".")[::2]) for full in _words("runs"))
CLASSES_THAT_RUN: Final = _words("classes that run")
"""Classes of the standard library whose constructor acts. `__main__.Popen` is one of them if the script imports it."""
