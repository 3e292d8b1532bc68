"""Wrong arguments of the public functions end in an error of nantrap with words, never in one from deep inside."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nantrap
from nantrap import checkpoints
from nantrap.errors import NantrapError
from nantrap.record import open_run

WRONG: dict[str, Any] = {
    "None": None, "negative": -1, "nan": math.nan, "empty": "", "zero byte": "a\0b", "object": object(), "list": [1],
    "dict": {}, "float": 1.5, "bytes": b"x", "type": int,
}  # fmt: skip


def parts() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def store() -> checkpoints.CheckpointStore:
    return nantrap.CheckpointStore("store")


def saved() -> checkpoints.CheckpointStore:
    made = store()
    made.save(step=1, model=parts()[0])
    return made


def guard(**options: Any) -> nantrap.Guard:
    return nantrap.Guard(*parts(), quiet=True, **options)


CALLS: dict[str, Callable[[Any], Any]] = {
    "CheckpointStore": lambda wrong: nantrap.CheckpointStore(wrong),
    **{
        f"CheckpointStore.{name}": lambda wrong, name=name: nantrap.CheckpointStore("store", **{name: wrong})
        for name in ("keep", "allow", "lock_seconds")
    },
    **{
        f"save.{name}": lambda wrong, name=name: store().save(**{"step": 1, "model": parts()[0], name: wrong})
        for name in ("step", "model", "optimizer", "scheduler", "scaler", "ema", "data_position", "extras", "pin")
    },
    "load": lambda wrong: saved().load(wrong),
    "load.model": lambda wrong: saved().load(model=wrong),
    "mark_suspect": lambda wrong: saved().mark_suspect(wrong, "diverged"),
    "audit": lambda wrong: nantrap.audit(wrong),
    "audit of several": lambda wrong: nantrap.audit([wrong]),
    "quarantine": lambda wrong: checkpoints.quarantine([], wrong),
    "quarantine.audits": lambda wrong: checkpoints.quarantine(wrong, "folder"),
    "finite_gate.allow": lambda wrong: checkpoints.finite_gate({}, allow=wrong),
    "explain": lambda wrong: nantrap.explain(wrong),
    "replay": lambda wrong: nantrap.replay(wrong),
    "preflight": lambda wrong: nantrap.preflight(wrong),
    "inject": lambda wrong: nantrap.inject(wrong).__enter__(),
    "without_samples": lambda wrong: nantrap.without_samples([1, 2], wrong),
    "open_run": open_run,
    "probe": lambda wrong: (guard(), nantrap.probe("name", wrong)),
    "Guard.model": lambda wrong: nantrap.Guard(wrong, parts()[1]),
    "Guard.optimizer": lambda wrong: nantrap.Guard(parts()[0], wrong),
    **{
        f"Guard.{name}": lambda wrong, name=name: guard(**{name: wrong})
        for name in ("scheduler", "scaler", "ema", "max_grad_norm", "policy", "run_dir", "watch", "save_every")
    },
    "guard.backward": lambda wrong: guard().backward(wrong),
    "guard.save": lambda wrong: guard().save(wrong),
    "guard.load": lambda wrong: guard().load(wrong),
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments_get_words(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for wrong in WRONG.values():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with contextlib.suppress(NantrapError):  # some are no mistake: no scheduler, no patterns
                CALLS[name](wrong)


def test_the_words_name_the_call_and_what_was_expected(tmp_path: Path) -> None:
    for call, words in (
        (lambda: nantrap.CheckpointStore(None), r"CheckpointStore\(None\): expected the path of a folder"),  # type: ignore[arg-type]
        (lambda: nantrap.CheckpointStore(tmp_path, keep="3"), r"keep='3'\): expected an integer, at least 1"),  # type: ignore[arg-type]
        (lambda: nantrap.explain("NT2\x0003"), "NT2"),
        (lambda: nantrap.explain(7), r"explain\(7\): expected a code or a slug, such as 'NT203'"),  # type: ignore[arg-type]
        (lambda: nantrap.replay("a\0b"), r"replay\('a\\x00b'\): expected the folder of an incident"),
        (lambda: nantrap.CheckpointStore("s3://bucket/run"), "addresses are not supported, only local paths"),
        (lambda: guard(run_dir="s3://bucket/run"), "addresses are not supported, only local paths"),
        (lambda: nantrap.audit("nosuch://bucket/x"), "nosuch"),
    ):
        with pytest.raises(NantrapError, match=words):
            call()
