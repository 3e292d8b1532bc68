"""Whole scripts that count their own optimizer steps: every reader of a run gives the same numbers as the script.

Each script writes what it counted itself to `own.json`. It is compared with the summary of `nantrap run --json`, with
`check --json`, `report --json`, `watch --once --json`, the counts of `serve` and its `/metrics`.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import torch

from nantrap.cli import main
from nantrap.record import StepTally
from nantrap.report.serving.content import metrics
from nantrap.report.serving.index import Index

_BEGIN = """
import json, torch
from pathlib import Path
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(0)
own = {"steps": 0, "skips": 0}
inputs, targets = torch.randn(64, 6), torch.randn(64, 1)
model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)

def batches(*bad, size=4, value=float("nan")):
    data = inputs.clone()
    data[list(bad), 2] = value
    return DataLoader(TensorDataset(data, targets), batch_size=size)

def write():
    Path(__file__).with_name("own.json").write_text(json.dumps(own))
"""


@dataclass(frozen=True)
class Counted:
    """What each reader says of one run."""

    code: int
    own: dict[str, Any]
    summary: dict[str, Any]
    check: dict[str, Any]
    said: str
    run_dir: Path

    @property
    def verdict(self) -> str:
        return str(self.check["verdict"])


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(
    body: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *options: str, ended: str = "write()"
) -> Counted:
    """Run a script and compare what its readers say with each other; the test compares it with the script's own."""
    tmp_path.mkdir(exist_ok=True)
    script, folder = tmp_path / "train.py", tmp_path / "runs" / "one"
    script.write_text(_BEGIN + textwrap.dedent(body) + f"\n{ended}\n")
    capsys.readouterr()
    code = main(["run", "--json", "--run-dir", str(folder), *options, str(script)])
    captured = capsys.readouterr()
    summary = json.loads(captured.out.strip().splitlines()[-1])
    main(["check", "--json", str(folder)])
    check = json.loads(capsys.readouterr().out)
    applied = next(each for each in check["findings"] if each["check"] == "applied")["evidence"]
    incidents = next(each for each in check["findings"] if each["check"] == "incidents")["evidence"]
    main(["report", "--json", str(folder)])
    report = json.loads(capsys.readouterr().out)
    main(["watch", "--once", "--json", str(folder)])
    watch = json.loads(capsys.readouterr().out)
    served, gauges = _served(tmp_path / "runs")
    expected = {name: summary[name] for name in ("steps", "applied", "skipped", "rollbacks", "scaler_probes")}
    assert {name: applied[name] for name in expected} == expected
    assert {name: watch[name] for name in expected} == expected
    assert (report["attempted"], report["applied"]) == (summary["steps"], summary["applied"])
    assert {"steps": served["attempted"], **{name: served[name] for name in [*expected][1:]}} == expected
    assert {name: gauges[name] for name in expected} == expected
    found = summary["incidents"]
    assert (incidents["incidents"], watch["incidents"], served["incidents"], gauges["incidents"]) == (found,) * 4
    assert incidents.get("causes", {}) == served["causes"] == summary["causes"]
    assert incidents.get("guesses", {}) == served["guesses"] == summary["guesses"]
    assert applied["given_up"] == served["given_up"] == summary["given_up"]
    assert applied["dropped_micro_batches"] == served["dropped_micro_batches"] == summary["dropped_micro_batches"]
    assert summary["applied"] + summary["skipped"] + summary["scaler_probes"] == summary["steps"]
    own = json.loads((tmp_path / "own.json").read_text())
    return Counted(code, own, summary, check, captured.err, folder)


def _served(root: Path) -> tuple[dict[str, Any], dict[str, float]]:
    """The counts of the server, and its metrics by name: of each optimizer, added up."""
    index = Index(root)
    try:
        index.discover()
        while index.scan():
            pass
        shown = [(each, index.counts(each.ident)) for each in index.summaries()]
        text = metrics(shown)
    finally:
        index.close()
    gauges: dict[str, float] = {}
    for name, value in re.findall(r'^nantrap_(\w+)\{run="[^"]*"\} (\S+)$', text, re.M):
        gauges[name] = gauges.get(name, 0.0) + float(value)
    whole = StepTally()
    for _, counts in shown:
        whole.add(counts)
    names = [each.name for each in fields(whole)]
    return {**{name: getattr(whole, name) for name in names}, "skipped": whole.skipped}, gauges


def test_a_healthy_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(
        """
        for epoch in range(3):
            for x, y in batches():
                optimizer.zero_grad()
                (model(x) - y).square().mean().backward()
                optimizer.step()
                own["steps"] += 1
        """,
        tmp_path,
        capsys,
    )
    assert found.summary["steps"] == found.summary["applied"] == found.own["steps"] == 48
    assert found.summary["incidents"] == 0


def test_the_guard_skips(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(
        """
        for epoch in range(2):
            for x, y in batches(9, 41):
                optimizer.zero_grad()
                (model(x) - y).square().mean().backward()
                optimizer.step()
                own["steps"] += 1
        """,
        tmp_path,
        capsys,
    )
    assert (found.summary["steps"], found.summary["skipped"], found.summary["given_up"]) == (found.own["steps"], 4, 0)
    assert found.summary["incidents"] == 4


def test_a_script_that_skips_its_batches_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(
        """
        for epoch in range(2):
            for x, y in batches(9, 41):
                optimizer.zero_grad()
                loss = (model(x) - y).square().mean()
                if torch.isnan(loss):
                    own["skips"] += 1
                    continue
                loss.backward()
                optimizer.step()
                own["steps"] += 1
        """,
        tmp_path,
        capsys,
    )
    assert (found.summary["applied"], found.summary["given_up"]) == (found.own["steps"], found.own["skips"])
    assert found.summary["incidents"] == found.own["skips"] == 4


_TESTING_THE_INPUT = """
own["places"], data = [], batches(9, 41)
for epoch in range(2):
    for number, (x, y) in enumerate(data):
        x = (x - 0.5) / 2
        if torch.isnan(x).any():
            own["places"].append([epoch, number])
            {then}
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        own["steps"] += 1
"""


def test_a_script_that_tests_what_it_made_of_a_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It skips before a model is called, and what it tests is not the loader's own tensor."""
    found = run(_TESTING_THE_INPUT.format(then="continue"), tmp_path, capsys)
    assert (found.summary["applied"], found.summary["given_up"]) == (found.own["steps"], len(found.own["places"]))
    lines = [json.loads(line) for line in (found.run_dir / "journal-r0.jsonl").read_text().splitlines()]
    assert [[line["epoch"], line["batch"]] for line in lines if line.get("action") == "skip"] == found.own["places"]
    assert "= sample: 1 (dataset index 9)" in found.said


def test_a_script_that_cleans_what_it_made_of_a_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Next door: the batch is used, so nothing was left out."""
    found = run(_TESTING_THE_INPUT.format(then="x = torch.where(x.isnan(), 0.0, x)"), tmp_path, capsys)
    assert (found.summary["steps"], found.summary["applied"]) == (found.own["steps"], 32)
    assert found.summary["incidents"] == found.summary["given_up"] == 0


def test_a_script_that_replaces_bad_values_in_what_it_made_of_a_batch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The data set's own indices are named, and not rows of a tensor."""
    body = _TESTING_THE_INPUT.replace("if torch.isnan(x).any():", "x = torch.nan_to_num(x)\n        if False:")
    found = run(body.format(then="pass"), tmp_path, capsys)
    assert (found.summary["applied"], found.summary["cleaned_inputs"]) == (32, 4)
    assert "4 batches cleaned by the script with nan_to_num: dataset indices 9, 41" in found.said


_ACCUMULATING = """
for epoch in range(3):
    for i, (x, y) in enumerate(batches({bad})):
        loss = (model(x) - y).square().mean() / 4
        if torch.isnan(loss):
            own["skips"] += 1
            {then}
        else:
            loss.backward()
        if (i + 1) % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
            own["steps"] += 1
"""


@pytest.mark.parametrize("then", ["continue", "pass"])
@pytest.mark.parametrize("bad", ["17, 21, 37, 49", "30, 41, 62"], ids=["first", "other"])
def test_a_script_that_accumulates_and_leaves_micro_batches_out(
    then: str, bad: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A micro-batch that is left out is no step, also if it would have been the first or the last of its step."""
    found = run(_ACCUMULATING.format(bad=bad, then=then), tmp_path, capsys)
    assert found.summary["steps"] == found.summary["applied"] == found.own["steps"]
    assert found.summary["dropped_micro_batches"] == found.summary["incidents"] == found.own["skips"]
    assert found.verdict != "sick"


def test_a_step_of_which_every_micro_batch_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(_ACCUMULATING.format(bad="16, 21, 25, 30", then="pass"), tmp_path, capsys)
    assert (found.summary["steps"], found.summary["applied"]) == (found.own["steps"], found.own["steps"] - 3)
    assert (found.summary["given_up"], found.summary["incidents"]) == (3, found.own["skips"])
    assert not found.summary["stopped"]
    assert "micro-batch 4 left out by the script" in found.said
    assert "micro-batch 4 left out by the script, the others stay" not in found.said


def test_two_losses_of_one_batch_are_no_accumulation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Next door: a step is made of two backward passes of the same batch, so a batch that is left out is a step."""
    found = run(
        """
        for x, y in batches(17, 41):
            optimizer.zero_grad()
            first = (model(x) - y).square().mean()
            if torch.isnan(first):
                own["skips"] += 1
                continue
            first.backward()
            (model(x) - y).abs().mean().backward()
            optimizer.step()
            own["steps"] += 1
        """,
        tmp_path,
        capsys,
    )
    assert (found.summary["applied"], found.summary["given_up"]) == (found.own["steps"], found.own["skips"]) == (14, 2)


def test_the_guard_leaves_micro_batches_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(
        """
        for epoch in range(3):
            for i, (x, y) in enumerate(batches(21, 25, 57)):
                ((model(x) - y).square().mean() / 4).backward()
                if (i + 1) % 4 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
                    own["steps"] += 1
        """,
        tmp_path,
        capsys,
    )
    assert found.summary["steps"] == found.own["steps"]
    assert found.summary["incidents"] >= found.summary["skipped"]


def test_a_validation_on_the_same_data_is_no_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(
        """
        data = batches(41)
        for epoch in range(3):
            model.train()
            for x, y in data:
                optimizer.zero_grad()
                loss = (model(x * 0.5 + 1) - y).square().mean()
                if torch.isnan(loss):
                    own["skips"] += 1
                    continue
                loss.backward()
                optimizer.step()
                own["steps"] += 1
            model.eval()
            with torch.no_grad():
                for x, y in data:
                    model(x)
        """,
        tmp_path,
        capsys,
    )
    assert (found.summary["applied"], found.summary["given_up"]) == (found.own["steps"], found.own["skips"])
    lines = [json.loads(line) for line in (found.run_dir / "journal-r0.jsonl").read_text().splitlines()]
    places = [(line["epoch"], line["batch"]) for line in lines if line.get("action") == "skip"]
    assert places == [(0, 10), (1, 10), (2, 10)]  # the batch that was left out, not the one after it
    assert {line["epoch"] for line in lines if "action" in line} == {0, 1, 2}


def test_a_scaler_that_searches_its_scale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run(
        """
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24, growth_interval=1000)
        own["left_out"] = 0
        for epoch in range(2):
            for x, y in batches(41):
                optimizer.zero_grad()
                with torch.autocast("cpu", dtype=torch.float16):
                    out = model(x)
                scaler.scale((out.float() - y).square().mean()).backward()
                before = model[0].weight.clone()
                scaler.step(optimizer)
                scaler.update()
                own["steps"] += 1
                own["left_out"] += torch.equal(before, model[0].weight)
        """,
        tmp_path,
        capsys,
    )
    assert found.summary["steps"] == found.own["steps"] == 32
    assert found.summary["skipped"] == found.summary["incidents"] == 2
    assert found.summary["scaler_probes"] == found.own["left_out"] - 2 > 0
    assert found.verdict != "sick"


def test_a_run_that_ends_with_an_exception(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = """
    for x, y in batches():
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        own["steps"] += 1
        if own["steps"] == 5:
            write()
            raise ValueError("its own")
    """
    found = run(body, tmp_path, capsys)
    assert (found.code, found.summary["steps"], found.summary["applied"]) == (1, 5, 5)
    assert found.verdict == "sick"
    assert found.check["state"] == "ended by ValueError"


def test_an_interrupt_in_a_healthy_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = """
    import os, signal
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for x, y in batches():
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        own["steps"] += 1
        if own["steps"] == 5:
            write()
            os.kill(os.getpid(), signal.SIGINT)
    """
    found = run(body, tmp_path, capsys)
    assert (found.code, found.summary["steps"], found.summary["incidents"]) == (130, 5, 0)
    assert found.verdict == "doubtful"
    assert "being diagnosed" not in found.said


def test_buffers_that_a_forward_pass_spoils_are_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A discriminator sees a real picture of 1e30 and then a fake one: the variance overflows, the loss does not."""
    body = """
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for x, y in batches(5, 20, 41, value=1e30):
        optimizer.zero_grad()
        (model(x).mean() - model(torch.randn(4, 6)).mean()).backward()
        optimizer.step()
        own["steps"] += 1
    own["finite"] = all(value.isfinite().all().item() for value in model.state_dict().values())
    """
    found = run(body, tmp_path, capsys)
    assert (found.code, found.own["finite"], found.summary["applied"], found.summary["incidents"]) == (0, True, 16, 0)
    assert found.said.count("a forward pass left non-finite values in buffer 0.running_var; they were restored") == 1
    assert "forward passes after which non-finite buffers were restored: 3" in found.said


def test_an_interrupt_while_a_bad_step_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing was judged yet; what the forward pass wrote into a buffer is restored all the same."""
    body = """
    import os, signal
    signal.signal(signal.SIGINT, signal.default_int_handler)

    class Rate(float):
        def __float__(self):
            os.kill(os.getpid(), signal.SIGINT)
            return 0.01

    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    try:
        for x, y in batches(5, value=float("nan")):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            if x.isnan().any():
                optimizer.param_groups[0]["lr"] = Rate(0.01)
            optimizer.step()
            own["steps"] += 1
    finally:
        own["finite"] = all(value.isfinite().all().item() for value in model.state_dict().values())
        write()
    """
    found = run(body, tmp_path, capsys)
    assert (found.code, found.own["finite"], found.summary["bad"]) == (130, True, [])


def test_an_interrupt_during_a_diagnosis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = """
    import os, signal
    signal.signal(signal.SIGINT, signal.default_int_handler)
    seen = []

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 1)

        def forward(self, x):
            if (x == 0).any():
                seen.append(1)
                if len(seen) > 1:
                    os.kill(os.getpid(), signal.SIGINT)
            return self.layer(x.abs().log() * x)

    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for x, y in batches(9, value=0.0):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        write()
        optimizer.step()
        own["steps"] += 1
    """
    found = run(body, tmp_path, capsys)
    assert (found.code, found.summary["steps"], found.summary["incidents"]) == (130, found.own["steps"], 1)
    assert found.summary["causes"] == {"undiagnosed": 1}
    assert "step 2: the run ended while this failure was being diagnosed" in found.said
    assert found.verdict == "doubtful"


def test_an_interrupt_while_the_graph_of_a_bad_loss_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = """
    import os, signal, sys
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt(frame, event, called):
        if event == "c_call" and called is torch.aminmax:
            os.kill(os.getpid(), signal.SIGINT)

    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    try:
        for x, y in batches(5, value=float("nan")):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            if loss.isnan():
                sys.setprofile(interrupt)
            loss.backward()
            optimizer.step()
            own["steps"] += 1
    finally:
        sys.setprofile(None)
        own["finite"] = all(value.isfinite().all().item() for value in model.state_dict().values())
        write()
    """
    found = run(body, tmp_path, capsys)
    assert (found.code, found.own["finite"], found.summary["bad"]) == (130, True, [])
    assert (found.summary["steps"], found.summary["incidents"]) == (found.own["steps"] + 1, 1)
    assert found.verdict == "doubtful"


def test_every_bad_sample_of_a_large_batch_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = """
    inputs, targets = torch.randn(400, 6), torch.randn(400, 1)
    for x, y in batches(*range(100, 390), size=400):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        write()
        optimizer.step()
    """
    found = run(body, tmp_path, capsys)
    assert "samples 100, 101, 102, 103, 104, 105 and 284 others" in found.said
    assert "sample: 100, 101, 102, 103, 104, 105, 106, 107 and 282 more (dataset index 100" in found.said
    assert "without samples 100, 101, 102, 103, 104, 105 and 284 others: verified" in found.said
    incident = json.loads(next(found.run_dir.glob("incidents/*/incident.json")).read_text())
    assert incident["samples"] == list(range(100, 390))


def test_a_guard_that_stops_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = """
    for x, y in batches(*range(20, 64)):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        own["steps"] += 1
        write()
        optimizer.step()
    """
    found = run(body, tmp_path, capsys, "--max-skips", "2")
    assert found.code == 3
    assert found.summary["steps"] == found.own["steps"]
    assert found.summary["applied"] == 5


_ADVERSARIAL = """
generator = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 6))
judge = nn.Sequential(nn.Linear(6, 8), nn.LeakyReLU(), nn.Linear(8, 1))
of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3)
of_judge = torch.optim.Adam(judge.parameters(), lr=1e-3)
criterion = nn.BCEWithLogitsLoss()
for epoch in range(2):
    for real, _ in batches({bad}):
        ones = torch.ones(len(real), 1)
        of_judge.zero_grad()
        fake = generator(torch.randn(len(real), 2))
        (criterion(judge(real), ones) + criterion(judge(fake.detach()), ones - 1)).backward()
        of_judge.step()
        of_generator.zero_grad()
        criterion(judge(fake), ones).backward()
        of_generator.step()
        own["steps"] += 2
"""


def test_two_optimizers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each has a journal of its own, and what is said of the run is true of both."""
    found = run(_ADVERSARIAL.format(bad="9, 41"), tmp_path, capsys)
    assert found.summary["steps"] == found.own["steps"]
    assert (found.summary["skipped"], found.summary["incidents"]) == (4, 4)
    assert found.verdict == "sick"  # of the second optimizer an eighth of the steps
    said = {each["check"]: each["summary"] for each in found.check["findings"]}
    assert said["incidents"].startswith("4 incidents")
    assert [each for each in said if each.startswith("optimizer")] == ["optimizer-2"]
    main(["report", "--format", "md", str(found.run_dir)])
    page = capsys.readouterr().out
    assert "2 optimizers" in page
    assert "Every step was applied" not in page
    main(["watch", "--once", str(found.run_dir)])
    assert "the input batch already contains NaN" in capsys.readouterr().out


def test_two_healthy_optimizers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Next door."""
    found = run(_ADVERSARIAL.format(bad=""), tmp_path, capsys)
    assert (found.summary["steps"], found.summary["incidents"]) == (found.own["steps"], 0)
    assert next(each for each in found.check["findings"] if each["check"] == "incidents")["outcome"] == "pass"


def test_a_guess_is_counted_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the first few alike are diagnosed; of the others the cause is what the first ones had."""
    found = run(
        """
        for epoch in range(4):
            for x, y in batches(9, 41):
                optimizer.zero_grad()
                (model(x) - y).square().mean().backward()
                optimizer.step()
                own["steps"] += 1
        """,
        tmp_path,
        capsys,
    )
    assert found.summary["causes"] == {"bad_input_data": 8}
    guessed = found.summary["guesses"]["bad_input_data"]
    assert 0 < guessed < 8
    assert f"  8 × bad_input_data (proven for {8 - guessed} of them)\n" in found.said


def test_an_incident_says_how_many_gradients_its_file_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of very many bad gradients the file lists the first ones; of few it lists all."""
    body = """
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range({layers})))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for x, y in batches(9):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        own["steps"] += 1
    """
    many = run(body.format(layers=15), tmp_path / "many", capsys)
    assert " more in incident.json, which lists 20 gradients at most\n" in many.said
    few = run(body.format(layers=4), tmp_path / "few", capsys)
    assert "more, all in incident.json\n" in few.said


_POLICY_GRADIENT = """
actor, critic = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), nn.Linear(6, 1)
optimizer = torch.optim.SGD([*actor.parameters(), *critic.parameters()], lr=1e-2)
for update in range(200):
    seen, returns, advantages = torch.randn(16, 6), torch.randn(16), torch.randn(16)
    with torch.no_grad():
        choices = torch.distributions.Categorical(logits=actor(seen))
        taken = choices.sample()
        before = choices.log_prob(taken)
    if update % 8 == 0:
        advantages[3::4] = float("nan")
    for which in torch.arange(16).split(4):
        advantage = (advantages[which] - advantages[which].mean()) / (advantages[which].std() + 1e-8)
        now = torch.distributions.Categorical(logits=actor(seen[which])).log_prob(taken[which])
        gain = -((now - before[which]).exp() * advantage).mean()
        loss = gain + (critic(seen[which]).squeeze(-1) - returns[which]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        own["steps"] += 1
        own["skips"] += update % 8 == 0
"""


def test_many_bad_steps_of_one_cause_are_a_few_lines_and_count_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A traced step reads every value. The script tests none of them, so it has skipped nothing itself."""
    found = run(_POLICY_GRADIENT, tmp_path, capsys, "--max-skips", "8")
    assert "armed: the next" in found.said
    assert (found.summary["steps"], found.summary["skipped"]) == (found.own["steps"], found.own["skips"])
    assert (found.summary["incidents"], found.summary["given_up"]) == (100, 0)
    assert "the script" not in found.said
    assert len(found.said.splitlines()) < 80
    assert len(re.findall(r"^error\[", found.said, re.M)) <= 3
    assert found.said.count("; further ones of this cause are counted\n") == 1
    assert "10 incidents with the cause bad_input_data by now; not all are printed\n" in found.said
    assert "100 incidents with the cause bad_input_data by now; not all are printed\n" in found.said


def test_few_bad_steps_have_a_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Next door."""
    body = _POLICY_GRADIENT.replace("range(200)", "range(2)")
    found = run(body, tmp_path, capsys, "--max-skips", "8")
    assert len(re.findall(r"step \d+ skipped[:;] ", found.said)) == found.own["skips"] == 4
    assert "counted" not in found.said
    assert "by now" not in found.said
