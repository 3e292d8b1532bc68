"""Labels that PyTorch itself refuses: what is said about the exception that ends the script."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import nantrap
from nantrap.guard.exceptions import refused_in_words

SCRIPT = """
import torch, torch.nn.functional as F
torch.set_num_threads(1)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(3):
    labels = torch.tensor([0, 1, 2, -100, 7 if step == 1 else 1])
    optimizer.zero_grad()
    F.cross_entropy(model(torch.randn(5, 4)), labels).backward()
    optimizer.step()
"""


def error_of(call: Callable[[], object]) -> BaseException:
    with pytest.raises(IndexError) as caught:
        call()
    return caught.value


def test_a_class_that_does_not_exist() -> None:
    labels = torch.tensor([0, -100, 2, 7])
    error = error_of(lambda: F.cross_entropy(torch.randn(4, 3), labels))
    assert refused_in_words(error) == (
        "a label is out of range: 7 in sample 3; cross_entropy has 3 classes and accepts 0 to 2, and -100 for what is "
        "ignored (NT102 label_out_of_range)"
    )


def test_a_token_beyond_the_vocabulary() -> None:
    error = error_of(lambda: torch.nn.Embedding(10, 2)(torch.tensor([[1, 2], [3, 10]])))
    assert refused_in_words(error) == (
        "a label is out of range: 10 in sample 1; embedding has 10 rows and accepts 0 to 9 (NT102 label_out_of_range)"
    )


def test_other_exceptions_are_not_explained() -> None:
    assert refused_in_words(error_of(lambda: [1, 2][7])) == ""
    assert refused_in_words(error_of(lambda: torch.zeros(3)[7])) == ""
    assert refused_in_words(ValueError("Target 7 is out of bounds.")) == ""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions have no notes")
@pytest.mark.parametrize(
    "step",
    [
        lambda guard, loss_fn: guard.attempt(loss_fn, torch.tensor([0, 7])),
        lambda guard, loss_fn: guard.backward(loss_fn(torch.tensor([0, 7]))),
    ],
    ids=["attempt", "two lines"],
)
def test_the_exception_of_a_guarded_loop_says_it_too(step: Callable[..., object]) -> None:
    model = torch.nn.Linear(4, 3)
    x = torch.randn(2, 4)
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), 0.1), quiet=True)
    with pytest.raises(IndexError, match="Target 7") as caught, guard:
        step(guard, lambda labels: F.cross_entropy(model(x), labels))
    (note,) = getattr(caught.value, "__notes__", [])
    assert note.startswith("nantrap: a label is out of range: 7 in sample 1; cross_entropy has 3 classes")


def test_another_exception_gets_no_note() -> None:
    model = torch.nn.Linear(4, 3)
    guard = nantrap.Guard(model, torch.optim.SGD(model.parameters(), 0.1), quiet=True)
    with pytest.raises(IndexError) as caught, guard:
        guard.attempt(lambda x: model(x)[9].sum(), torch.randn(2, 4))
    assert not getattr(caught.value, "__notes__", [])


def test_a_script_that_dies_of_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, "-m", "nantrap", "run", "--run-dir", str(tmp_path / "run"), str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert done.returncode == 1
    assert "IndexError: Target 7 is out of bounds." in done.stderr
    assert "nantrap: a label is out of range: 7 in sample 4; cross_entropy has 3 classes" in done.stderr + done.stdout
