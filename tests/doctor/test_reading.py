"""Settings are read from every kind of file with their line, and bad files become notes."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import pytest

from nantrap.doctor.examine import examine
from nantrap.doctor.report import DoctorReport, as_github, as_lines, places_of
from nantrap.errors import UsageError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report_on(folder: Path, **files: str) -> DoctorReport:
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text, encoding="utf-8")
    return examine(["."])


def fact(report: DoctorReport, name: str) -> tuple[object, int]:
    found = [each for each in report.facts if each.name == name]
    assert len(found) == 1, found
    return found[0].value, found[0].line


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a__yaml", "x: 1\ntrainer:\n  optimizer:\n    lr: 1e-5  # lower\n", 4),
        ("a__yaml", "base: &b {lr: 1e-5}\ntrain:\n  <<: *b\n", 1),
        ("a__yaml", "train:\n  lr: ${rate}\nrate: 1e-5\n", 2),
        ("a__json", '{\n  "optim": {\n    "args": {"lr": 1e-5}\n  }\n}\n', 3),
        ("a__json", '{\n  // comment\n  "learningRate": "1e-5",\n}\n', 3),
        ("a__toml", "[model]\nx = 1\n[training]\nlearning_rate = 1e-5 # low\n", 4),
        ("a__toml", "train = { lr = 1e-5, other = [1,\n 2] }\n", 1),
        ("a__py", "SEED = 1\nLEARNING_RATE = 1e-5\n", 2),
        ("a__py", "RATE = 2e-5\nclass Config:\n    lr: float = RATE / 2\n", 3),
        ("a__py", "def main():\n    cfg = {\n        'lr': 1e-5,\n        'optimizer': 'adam',\n    }\n", 3),
        (
            "a__py",
            "import argparse\np = argparse.ArgumentParser()\np.add_argument('--lr', type=float, default=1e-5)\n",
            3,
        ),
        ("a__py", "from transformers import TrainingArguments\na = TrainingArguments(\n  learning_rate=1e-5)\n", 3),
        (
            "a__py",
            "from dataclasses import dataclass, field\n@dataclass\nclass Args:\n  lr: float = field(default=1e-5)\n",
            4,
        ),
        ("a__sh", "LR=1e-5\n# LR=3\npython train.py \\\n  --lr $LR --epochs 3\n", 1),
        ("a__sh", "python train.py optimizer.lr=1e-5 --epochs 3\n", 1),
        ("a__sh", "torchrun --nproc_per_node=2 train.py --lr=${LR:-1e-5}\n", 1),
    ],
)
def test_a_learning_rate_and_its_line(folder: Path, name: str, text: str, line: int) -> None:
    report = report_on(folder, **{name: text})
    assert report.notes == ()
    assert fact(report, "learning rate") == (1e-5, line)


@pytest.mark.parametrize("text", ["lr: auto", "lr: ${missing}", "lr: $LR", "# lr: 1e-5\nx: 1", 'x: "lr: 1e-5"'])
def test_what_is_unknown_is_not_guessed(folder: Path, text: str) -> None:
    report = report_on(folder, a__yaml=text)
    assert report.facts == ()
    assert report.findings == ()


def test_hydra_puts_a_folder_together(folder: Path) -> None:
    (folder / "conf" / "optimizer").mkdir(parents=True)
    (folder / "conf" / "config.yaml").write_text("defaults:\n  - optimizer: adam\n  - _self_\npeak: 0.5\n")
    (folder / "conf" / "optimizer" / "adam.yaml").write_text("_target_: torch.optim.Adam\nlr: ${peak}\n")
    (folder / "conf" / "optimizer" / "sgd.yaml").write_text("_target_: torch.optim.SGD\nlr: 0.5\n")
    found = examine(["conf"]).findings
    assert [(each.code, each.place.file, each.place.line, each.data["value"]) for each in found] == [
        ("NT810", os.path.join("conf", "optimizer", "adam.yaml"), 2, 0.5)
    ]


def test_a_recursive_anchor_and_a_billion_laughs_are_notes(folder: Path) -> None:
    levels = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10))
    report = report_on(
        folder,
        loop__yaml="lr: 1e-4\na: &a\n  b: *a\n",
        laugh__yaml=f"lr: 1e-4\na0: &a0 [x, x, x]\n{levels}\n",
        good__yaml="optimizer: adam\nlr: 0.5\n",
    )
    notes = {note.file: note.message for note in report.notes}
    assert notes["loop.yaml"] == "an anchor contains itself"
    assert notes["laugh.yaml"].startswith("more than 20,000 values")
    assert [each.place.file for each in report.findings] == ["good.yaml"]


def test_broken_files_are_notes_and_the_rest_is_read(folder: Path) -> None:
    (folder / "binary.yaml").write_bytes(b"lr: 1\0\x01\x02")
    (folder / "latin.json").write_bytes(bytes(range(128, 256)) * 9)
    big = folder / "big.yaml"
    with big.open("wb") as stream:
        stream.truncate(10_000_000_000)  # sparse
    report = report_on(
        folder,
        bad__py="import torch\ndef f(:\n",
        bad__yaml="lr: [1,\n",
        bad__json='{"lr": 1e-4,\n "x" 3}',
        bad__toml="lr = 1e-4\nwhat is this\n",
        good__yaml="optimizer: adam\nlr: 0.5\n",
    )
    notes = {note.file: (note.line, note.message) for note in report.notes}
    assert notes["binary.yaml"] == (None, "is binary: left out")
    assert notes["bad.py"][0] == 2
    assert notes["bad.py"][1].startswith("not Python: ")
    assert notes["bad.yaml"][1].startswith("not YAML: ")
    assert notes["bad.json"] == (2, "not JSON: a colon is missing")
    assert notes["bad.toml"] == (2, "not TOML: expected NAME = value or [section], found 'what is this'")
    assert "10,000,000,000 bytes" in notes["big.yaml"][1]
    assert "latin.json" in notes
    assert [each.code for each in report.findings] == ["NT810"]


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_a_note(folder: Path) -> None:
    (folder / "secret").mkdir(mode=0)
    assert [note.file for note in report_on(folder).notes] == [os.path.join(".", "secret")]


def test_a_path_that_does_not_exist_is_wrong_use(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.yaml: there is no such file or folder"):
        examine(["nowhere.yaml"])


def test_comments_silence_findings(folder: Path) -> None:
    report = report_on(
        folder,
        a__py="""import torch
loss = torch.nan_to_num(loss)  # nantrap: ignore[NT852]
loss = torch.nan_to_num(loss)  # nantrap: ignore
# nantrap: ignore[nan_to_num_on_loss]
loss = torch.nan_to_num(loss)
loss = torch.nan_to_num(loss)  # nantrap: ignore[NT851]
""",
    )
    assert [each.place.line for each in report.findings] == [6]


def test_tests_and_inference_are_silent(folder: Path) -> None:
    bad = "import torch\ndef f(loss):\n    return torch.nan_to_num(loss)\n"
    (folder / "tests").mkdir()
    (folder / "tests" / "helper.py").write_text(bad)
    report = report_on(folder, test_x__py=bad, y__py=bad.replace("def f", "@torch.no_grad()\ndef f"), z__py=bad)
    assert [each.place.file for each in report.findings] == ["z.py"]
    # a file that is asked for by name is read, wherever it lies
    assert len(examine([os.path.join("tests", "helper.py")]).findings) == 1


def test_more_names(folder: Path) -> None:
    (folder / "a.yaml").write_text("optimizer: adam\nschritt: 0.5\n")
    assert examine(["."]).findings == ()
    assert [each.code for each in examine(["."], names={"schritt": "lr"}).findings] == ["NT810"]


def test_a_report_of_nantrap_is_no_configuration(folder: Path) -> None:
    (folder / "doctor.json").write_text(
        '{"schema": "nantrap.doctor/1", "status": {"a.yaml": {"lr": 1.0, "fp16": true}}}'
    )
    assert examine([str(folder)]).status == {}


def test_marks_that_others_leave_in_shared_nodes_are_not_followed(folder: Path) -> None:
    """IPython's tracebacks give every node a parent, and Python uses one node for each minus sign of all trees."""
    tree = ast.parse("-1")
    (statement,) = tree.body
    assert isinstance(statement, ast.Expr)
    assert isinstance(statement.value, ast.UnaryOp)
    minus = statement.value.op
    minus.parent = tree  # type: ignore[attr-defined]
    try:
        report = report_on(
            folder, a__py="import torch\ndef f(loss):\n    x = -loss\n    return torch.nan_to_num(loss)\n"
        )
    finally:
        del minus.parent  # type: ignore[attr-defined]
    assert [each.place.line for each in report.findings] == [4]


@pytest.mark.parametrize(("experiments", "expected"), [(2, ["error"]), (6, ["warning"]), (20, [])])
def test_one_deepspeed_file_beside_many_experiments_contradicts_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiments: int, expected: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}}')
    for number in range(experiments):
        (tmp_path / f"run{number}.yaml").write_text("learning_rate: 1e-5\nfp16: true\nuse_deepspeed: true\n")
    found = [each for each in examine(["."]).findings if each.code == "NT801"]
    assert [each.severity for each in found] == expected
    assert [len(places_of(each)) for each in found] == [experiments] * len(found)


def test_what_is_said_of_several_places_is_one_finding_with_its_places(folder: Path) -> None:
    text = "import torch\ndef mix(a, b):\n    return torch.einsum('bii,bij->bij', a, b)\n"
    report = report_on(folder, a__py=text, b__py=text.replace("def", "\n# below\ndef"), c__py="import torch\n")
    (finding,) = report.findings
    assert [(place.file, place.line) for place in places_of(finding)] == [("a.py", 3), ("b.py", 5)]
    (value,) = report.to_dict()["findings"]
    assert value["places"] == [{"file": "a.py", "line": 3}, {"file": "b.py", "line": 5}]
    assert as_github(report).count("::error file=") == 2
    assert ("  also at ", ("b.py:5", "dim")) in list(as_lines(report))


def test_another_sentence_is_another_finding(folder: Path) -> None:
    text = "import torch\ndef mix(a, b):\n    return torch.einsum('bii,bij->bij', a, b)\n"
    report = report_on(folder, a__py=text, b__py=text.replace("ii", "kk"))
    assert [len(places_of(each)) for each in report.findings] == [1, 1]
