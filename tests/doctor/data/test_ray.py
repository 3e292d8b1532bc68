"""The same check on a real local Ray cluster of two workers, one of which is killed on the way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nantrap.doctor.data import check_data
from nantrap.engines import engine_named
from nantrap.errors import MissingExtraError


def test_ray_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'nantrap\[ray\]'"):
        engine_named("ray")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_same_report_though_a_worker_is_killed(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray")
    rng = np.random.default_rng(0)
    for number in range(6):
        x = rng.normal(size=(50, 20)).astype("f4")
        x[number, 3] = np.nan
        np.savez(tmp_path / f"part-{number}.npz", x=x, labels=rng.integers(0, 5, 50))
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY")
    expected = check_data(tmp_path).to_dict()
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    try:
        engine = engine_named("ray", workers=2)
        assert check_data(tmp_path, engine=engine).to_dict() == expected
        killed = tmp_path / "killed"
        assert check_data(tmp_path, engine=_Killing(engine, killed)).to_dict() == expected
        assert killed.exists()
    finally:
        ray.shutdown()


class _Killing:
    """Hands over a function that kills the worker it runs in, once."""

    def __init__(self, engine: Any, mark: Path) -> None:
        self._engine, self._mark = engine, mark

    def run(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        mark = str(self._mark)

        def deadly(item: Any) -> Any:
            if not os.path.exists(mark):
                Path(mark).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return function(item)

        yield from self._engine.run(deadly, items)
