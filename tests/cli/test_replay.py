"""`nantrap replay --entry` and `assert_replays_clean` as tests of a fix: one fix that works, and some that do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import nantrap
from nantrap.cli import main

TRAINING = """
import torch
from torch import nn

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.norm(x))


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def loss(batch):
    ratio = batch["weight"].sum() / batch["weight"].sum()
    return model(batch["x"]).square().mean() * ratio


def repaired(batch):
    weight = batch["weight"].sum()
    return model(batch["x"]).square().mean() * weight / weight.clamp(min=1.0)


def given_the_model(network, batch):
    assert network is model
    return repaired(batch)


def another_failure(batch):
    return model(batch["x"]).square().mean() + (repaired(batch) * 0 - 1).log()


def without_effect(batch):
    return loss(batch) + 1e-6


def with_a_bug(batch):
    print("printed by the program")
    return batch["no such key"]


def build():
    network = Net()
    return network, torch.optim.AdamW(network.parameters(), lr=0.01), lambda batch: network(batch["x"]).mean()


def far_too_many(a, b, c):
    return a


def elsewhere():
    network = model
    return lambda batch: network(batch["x"]).mean()
"""

RUN = """
import sys
import nantrap, torch, training

policy = nantrap.Policy(bundle=nantrap.Bundle(kind=sys.argv[1], data=sys.argv[2] == "data"))
with nantrap.Guard(training.model, training.optimizer, run_dir=sys.argv[3], policy=policy) as guard:
    for step in range(3):
        weight = torch.zeros(5) if step == 2 else torch.ones(5)
        guard.attempt(training.loss, {"x": torch.randn(5, 4), "weight": weight})
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fix")
    (folder / "training.py").write_text(TRAINING)
    (folder / "run.py").write_text(RUN)
    return folder


def recorded(place: Path, kind: str, data: str) -> tuple[str, str]:
    """The bundle of the program's failure, and what the program said."""
    name = f"runs-{kind}-{data}"
    done = subprocess.run(
        [sys.executable, "run.py", kind, data, name],
        cwd=place, capture_output=True, text=True, timeout=120, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    bundle = next((place / name / "incidents").iterdir())
    return str(bundle), done.stderr


@pytest.fixture(scope="module")
def full(place: Path) -> tuple[str, str]:
    return recorded(place, "full", "data")


@pytest.fixture
def inside(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.delitem(sys.modules, "training", raising=False)


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize("entry", ["repaired", "given_the_model", "build"])
def test_a_fix_that_works(full: tuple[str, str], entry: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", full[0], "--entry", f"training:{entry}"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "The failure is gone: step 2 is finite with this code."


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize("entry", ["loss", "without_effect"])
def test_a_fix_that_does_not_work(full: tuple[str, str], entry: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", full[0], "--entry", f"training:{entry}"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "The failure is still there: step 2 ends with empty_reduction[NT103] in loss (aten.div)."


@pytest.mark.usefixtures("inside")
def test_a_fix_that_brings_another_failure(full: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", full[0], "--entry", "training:another_failure"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("Step 2 still fails, in another way: it was empty_reduction[NT103] in loss (aten.div), and")


@pytest.mark.usefixtures("inside")
def test_as_json_the_prints_of_the_program_stay_outside(
    full: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", full[0], "--entry", "training:repaired", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["mode"], document["reproduced"]) == ("step", False)
    assert document["sentence"] == "The failure is gone: step 2 is finite with this code."


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("training:with_a_bug", "the entry raised KeyError: 'no such key'"),
        ("training:far_too_many", "the entry needs 3 arguments"),
        ("training:elsewhere", "the entry must return (model, optimizer, loss_fn)"),
        ("training", "write it as module:function"),
        ("absent_module:loss", "absent_module cannot be imported"),
    ],
)
def test_wrong_use_is_no_verdict(
    full: tuple[str, str], entry: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", full[0], "--entry", entry]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.out == ""


@pytest.mark.usefixtures("inside")
def test_the_command_is_offered_where_it_works(place: Path, full: tuple[str, str]) -> None:
    bundle, said = full
    assert f"test a fix: nantrap replay runs-full-data/incidents/{Path(bundle).name} --entry module:function" in said
    assert "--entry module:function" in (Path(bundle) / "report.html").read_text()


@pytest.mark.usefixtures("inside")
def test_the_command_is_not_offered_by_the_default_bundle(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle, said = recorded(place, "light", "none")
    assert "nantrap replay" not in said
    assert "nantrap replay" not in (Path(bundle) / "report.html").read_text()
    assert main(["replay", bundle, "--entry", "training:repaired"]) == 2
    assert "Policy(bundle=Bundle(kind='full', data=True)) keeps both" in capsys.readouterr().err
    assert main(["replay", bundle]) == 2
    assert "Nothing could be run: the bundle is light" in capsys.readouterr().err


@pytest.mark.usefixtures("inside")
def test_the_fixture_does_the_same(full: tuple[str, str], place: Path) -> None:
    (place / "test_fix.py").write_text(
        "import training\n"
        f"BUNDLE = {full[0]!r}\n"
        "def test_repaired(assert_replays_clean):\n"
        "    assert_replays_clean(BUNDLE, training.repaired)\n"
        "def test_by_name(assert_replays_clean):\n"
        "    assert_replays_clean(BUNDLE, 'training:given_the_model')\n"
        "def test_not_repaired(assert_replays_clean):\n"
        "    assert_replays_clean(BUNDLE, training.without_effect)\n"
        "def test_bug(assert_replays_clean):\n"
        "    assert_replays_clean(BUNDLE, training.with_a_bug)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "nantrap.pytest_plugin", "-p", "no:cacheprovider", "test_fix.py"],
        cwd=place, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert "2 failed, 2 passed" in done.stdout, done.stdout
    still = "The failure is still there: step 2 ends with empty_reduction[NT103] in loss (aten.div)."
    assert still in done.stdout
    assert "could not be replayed: the entry raised KeyError: 'no such key'" in done.stdout


def test_a_smaller_learning_rate_can_be_the_fix(tmp_path: Path) -> None:
    import torch
    from torch import nn

    def build(rate: float) -> tuple[nn.Module, torch.optim.Optimizer, object]:
        model = nn.Linear(2, 1, bias=False)
        return model, torch.optim.SGD(model.parameters(), lr=rate), lambda batch: model(batch).sum() * 1e20

    model, optimizer, loss_fn = build(1e25)
    policy = nantrap.Policy(bundle=nantrap.Bundle(kind="full", data=True))
    with nantrap.Guard(model, optimizer, policy=policy, run_dir=tmp_path, quiet=True, max_grad_norm=None) as guard:
        incident = guard.attempt(loss_fn, torch.ones(3, 2)).incident  # type: ignore[arg-type]
    assert incident is not None
    assert incident.phase == "optimizer"
    assert nantrap.replay(str(incident.bundle), entry=lambda: build(1e25)).reproduced is True
    assert nantrap.replay(str(incident.bundle), entry=lambda: build(1e-25)).reproduced is False


SCRIPT = """
import sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)


def loss_of(model, batch):
    x, weight = batch
    return (model(x).square().mean(dim=1) * weight).sum() / weight.sum()


def repaired(model, batch):
    x, weight = batch
    return (model(x).square().mean(dim=1) * weight).sum() / weight.sum().clamp(min=1.0)


if __name__ == "__main__":
    weight = torch.ones(20)
    weight[8:12] = 0.0
    for batch in DataLoader(TensorDataset(torch.randn(20, 4), weight), batch_size=4):
        optimizer.zero_grad()
        if "written" in sys.argv:
            batch[0].add_(1.0)
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
"""


def run_script(folder: Path, *options: str, argument: str = "plain") -> Path:
    """The folder of the incident of step 2."""
    (folder / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "nantrap", "run", "--run-dir", "run", *options, "train.py", argument],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    bundle = folder / "run" / "incidents" / "000002-r0"
    assert ("test a fix: nantrap replay run/incidents/000002-r0 --entry" in done.stderr) is (
        bundle / "batch.safetensors"
    ).exists()
    return bundle


def test_a_step_of_a_script_is_replayed_with_the_batch_of_its_loader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = run_script(tmp_path, "--bundle-data")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "train", raising=False)
    assert main(["replay", str(bundle), "--entry", "train:loss_of"]) == 1
    assert "The failure is still there: step 2 ends with empty_reduction[NT103]" in capsys.readouterr().out
    assert main(["replay", str(bundle), "--entry", "train:repaired"]) == 0
    assert "The failure is gone: step 2 is finite with this code." in capsys.readouterr().out
    monkeypatch.delitem(sys.modules, "train")


@pytest.mark.parametrize("case", [((), "plain"), (("--bundle-data",), "written")])
def test_no_batch_is_written_unasked_or_once_the_script_has_changed_it(
    case: tuple[tuple[str, ...], str], tmp_path: Path
) -> None:
    options, argument = case
    assert not (run_script(tmp_path, *options, argument=argument) / "batch.safetensors").exists()
