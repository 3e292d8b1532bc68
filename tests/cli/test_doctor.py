"""`nantrap doctor`: the status, the findings, the formats, patches, the exit code."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import pytest

from nantrap.cli import main
from nantrap.doctor.install import examine_installation

TRAINER = "trainer:\n  lr: 1e-5   # reduced\n  min_lr: 1e-6\n  amp: True\n  fp16: False\n"
LAUNCHER = (
    "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\ngpu_ids: 1,2\nmixed_precision: bf16\n"
    "num_processes: 2\n"
)


@pytest.fixture
def radiodiff(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The two files of the RadioDiff project."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "radio.yaml").write_text(TRAINER)
    (tmp_path / "accelerate.yaml").write_text(LAUNCHER)
    return tmp_path


def test_the_status_comes_first(radiodiff: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert [" ".join(line.split()) for line in out.splitlines()[:13]] == [
        "settings",
        "accelerate.yaml",
        "mixed precision bf16 line 4",
        "distributed type MULTI_GPU line 2",
        "devices 1,2 line 3",
        "radio.yaml",
        "AMP on line 4",
        "fp16 off line 5",
        "learning rate 1e-05 line 2",
        "smallest lr 1e-06 line 3",
        "mixed precision amp, dtype not named line 4",
        "not aligned: 1 contradiction, see below",
        "",
    ]
    assert "high[NT804] amp_without_dtype: trainer.amp is on and no dtype is named" in out
    assert "  --> radio.yaml:4\n    4 |   amp: True\n" in out
    assert out.splitlines()[-1] == "2 files read: 1 high, 1 low; `nantrap explain CODE` explains each"


def test_json_is_the_contract(radiodiff: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "."]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["schema"] == "nantrap.doctor/1"
    assert sorted(data["files_read"]) == ["accelerate.yaml", "radio.yaml"]
    assert data["status"]["radio.yaml"] == {
        "mixed_precision": "amp, dtype not named", "lr": 1e-5, "min_lr": 1e-6, "warmup": None, "clip": None,
        "accumulation": None, "batch_size": None, "optimizer": None, "distributed_type": None, "devices": None,
    }  # fmt: skip
    finding, unclipped = data["findings"]
    assert (unclipped["slug"], unclipped["risk"]) == ("clip_missing", "low")
    assert set(finding) == {"code", "slug", "risk", "file", "line", "value", "message", "fix"}
    assert (finding["code"], finding["slug"], finding["risk"]) == ("NT804", "amp_without_dtype", "high")
    assert (finding["file"], finding["line"], finding["value"]) == ("radio.yaml", 4, True)


def test_aligned_files_are_called_so(radiodiff: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (radiodiff / "radio.yaml").write_text("lr: 1e-4\nbf16: true\nmax_grad_norm: 1.0\n")
    assert main(["doctor"]) == 0
    assert "aligned: no two files contradict each other" in capsys.readouterr().out


def test_sarif_and_github(radiodiff: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--format", "sarif"]) == 1
    run = json.loads(capsys.readouterr().out)["runs"][0]
    assert run["results"][0]["ruleId"] == run["tool"]["driver"]["rules"][0]["id"] == "NT804"
    assert run["results"][0]["locations"][0]["physicalLocation"]["region"] == {"startLine": 4}
    assert main(["doctor", "--format", "github"]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith("::error file=radio.yaml,line=4,title=NT804 amp_without_dtype::trainer.amp is on")


def test_a_patch_keeps_comments_and_order(radiodiff: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "# mine\noptim:\n  lr: 1e-4   # peak\n  grad_clip_norm: 3.0\nbatch_size: 128 # fits\n"
    (radiodiff / "radio.yaml").write_text(text)
    assert main(["doctor", "radio.yaml", "--suggest", "very-conservative"]) == 0
    out = capsys.readouterr().out
    patch = out[out.index("--- a/radio.yaml") :]
    assert patch.splitlines()[3:] == [
        " # mine",
        " optim:",
        "-  lr: 1e-4   # peak",
        "-  grad_clip_norm: 3.0",
        "-batch_size: 128 # fits",
        "+  lr: 1e-5   # peak",
        "+  grad_clip_norm: 0.5",
        "+batch_size: 32 # fits",
    ]
    assert (radiodiff / "radio.yaml").read_text() == text


SEED = """\
LEARNING_RATE = 1e-4
CLIP_GRAD = 3.0
STUDENT_TEMP = 0.04
TEACHER_TEMP = 0.03
BETA = 0.6
BATCH_SIZE = 256
WARMUP_STEPS = 1000
GRADIENT_ACCUMULATION_STEPS = 1
NUM_STREAMS = 4
"""


def test_a_conservative_patch_gives_a_reason_for_every_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.py").write_text(SEED)
    assert main(["doctor", "config.py", "--suggest", "conservative"]) == 0
    out = capsys.readouterr().out
    shown = [" ".join(line.split()) for line in out.splitlines()]
    for row in ("student temp 0.04 line 3", "teacher temp 0.03 line 4", "beta 0.6 line 5", "streams 4 line 9"):
        assert row in shown
    assert [line for line in out.splitlines() if line.startswith("+") and "/" not in line] == [
        "+LEARNING_RATE = 5e-5",
        "+CLIP_GRAD = 1.0",
        "+STUDENT_TEMP = 0.05",
        "+TEACHER_TEMP = 0.04",
        "+BETA = 0.5",
        "+BATCH_SIZE = 128",
        "+WARMUP_STEPS = 2000",
        "+GRADIENT_ACCUMULATION_STEPS = 2",
    ]
    reasons = [line for line in out.splitlines() if line.startswith("# ")]
    assert len(reasons) == 8
    assert all(": " in line for line in reasons), reasons
    (tmp_path / "config.py").write_text(SEED + "USE_FP16 = True\n")
    main(["doctor", "config.py", "--suggest", "very-conservative"])
    lines = capsys.readouterr().out.splitlines()
    for line in (
        "BATCH_SIZE = 64",
        "GRADIENT_ACCUMULATION_STEPS = 4",
        "NUM_STREAMS = 2",
        "BETA = 0.4",
        "USE_FP16 = False",
    ):
        assert f"+{line}" in lines, "half of the conservative batch, and full precision"


def test_a_batch_without_accumulation_gets_smaller_and_other_betas_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dpo.yaml").write_text("beta: 0.6\nglobal_batch_size: 64\nmicro_batch_size: 8\n")
    assert main(["doctor", "dpo.yaml", "--suggest", "conservative"]) == 0
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("+") and "/" not in line] == [
        "+global_batch_size: 32",
        "+micro_batch_size: 4",
    ]


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        (
            "c.py",
            "LR = 1e-4  # x\nNUM_STREAMS = 2\nBATCH_SIZE = 32\n",
            "LR = 1.5e-4  # x\nNUM_STREAMS = 4\nBATCH_SIZE = 48\n",
        ),
        ("c.toml", '[train]\nlr = 0.002 # x\nname = "é"\n', '[train]\nlr = 0.003 # x\nname = "é"\n'),
        ("c.json", '{"name": "é", "lr": 2e-5}\n', '{"name": "é", "lr": 3e-5}\n'),
        ("c.sh", "LR=1e-4\npython train.py --lr $LR\n", "LR=1.5e-4\npython train.py --lr $LR\n"),
        ("c.yaml", "lr: 1e-4\r\nx: 1\r\n", "lr: 1.5e-4\r\nx: 1\r\n"),
    ],
)  # fmt: skip
def test_fix_writes_after_a_backup(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    before: str,
    after: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / name
    path.write_bytes(before.encode())
    (tmp_path / f"{name}.bak").write_text("an older backup")
    assert main(["doctor", name, "--suggest", "scale-up", "--fix"]) == 0
    assert path.read_bytes().decode() == after
    assert (tmp_path / f"{name}.bak").read_text() == "an older backup"
    assert (tmp_path / f"{name}.bak1").read_bytes().decode() == before
    assert capsys.readouterr().out.splitlines()[-1] == f"{name} changed; the old one is {name}.bak1"


def test_fix_alone_fixes_findings(radiodiff: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = radiodiff / "radio.yaml"
    path.write_text("lr: 1e-5\nmin_lr: 1e-4 # floor\nmax_grad_norm: 1000\n")
    assert main(["doctor", "radio.yaml", "--fix"]) == 0
    assert path.read_text() == "lr: 1e-5\nmin_lr: 1e-6 # floor\nmax_grad_norm: 1.0\n"
    capsys.readouterr()


def test_a_lower_learning_rate_would_freeze_bfloat16(radiodiff: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (radiodiff / "radio.yaml").write_text("precision: bf16-true\noptimizer: {name: adamw, lr: 2e-4}\n")
    main(["doctor", "radio.yaml", "--suggest", "very-conservative"])
    out = capsys.readouterr().out
    assert "+optimizer: {name: adamw, lr: 1e-4}" in out
    assert "a lower learning rate would freeze them" in out


def test_the_share_of_frozen_weights(radiodiff: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    torch.save({"model": {"w": torch.randn(200, 200) * 0.02}}, radiodiff / "c.pt")
    (radiodiff / "radio.yaml").write_text("lr: 5e-5\n")
    assert main(["doctor", "radio.yaml", "--checkpoint", "c.pt"]) == 0
    assert "c.pt: at a learning rate of 5e-05, 43." in capsys.readouterr().out
    assert main(["doctor", "radio.yaml", "--checkpoint", "none.pt"]) == 2
    assert "none.pt: cannot be read" in capsys.readouterr().err


def test_the_installation(capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--install", "--json"])
    data = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in data["rows"]}
    assert {"nantrap", "python", "torch", "numpy", "cpu", "disk"} <= rows.keys()
    assert rows["torch"]["problem"] == ""


def test_the_installation_needs_what_the_package_declares(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch is needed only to train; what is too old or missing is named with the version that is declared."""
    declared = ["numpy>=99.5", "torch>=2.6; extra == 'torch'", "jinja2>=1.0", "ray>=2.40; extra == 'ray'"]
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: declared)
    installed = importlib.metadata.version

    def version(name: str) -> str:
        if name == "torch":
            raise importlib.metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    rows = {row.name: row for row in examine_installation() if row.group == "packages"}
    assert list(rows) == ["torch", "numpy", "jinja2"]
    assert (rows["torch"].problem, rows["jinja2"].problem) == ("", "")
    assert "pip install 'nantrap[torch]'" in rows["torch"].found
    assert rows["numpy"].problem == "older than 99.5"
    assert rows["numpy"].fix == "pip install 'numpy>=99.5'"


def test_wrong_use(radiodiff: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "nowhere"]) == 2
    assert capsys.readouterr().err == "error: nowhere: there is no such file or folder\n"
    (radiodiff / "names.yaml").write_text("a: b\n")
    assert main(["doctor", "--names", "names.yaml"]) == 2
    assert "names.yaml:1: b is not a known setting" in capsys.readouterr().err


def test_no_torch_is_imported(radiodiff: Path) -> None:
    code = "import sys; from nantrap.cli import main; main(['doctor', '.']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_names_cannot_reach_the_terminal(radiodiff: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (radiodiff / "radio.yaml").write_text('optimizer: "adam\\e[31m"\nlr: 0.5\n')
    main(["doctor", "radio.yaml"])
    assert "\x1b[31m" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("loss", "found", "problem"),
    [
        ("model(batch).sum()", "fits: one step takes", ""),
        ("model(batch).sum() + torch.empty(1 << 50).sum()", "tried", "does not fit into the memory of cpu"),
        ("model(batch).sum() + missing", "tried", "the step fails: NameError: name 'missing' is not defined"),
    ],
)
def test_whether_one_batch_fits_into_memory(
    loss: str,
    found: str,
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "one_batch", raising=False)
    (tmp_path / "one_batch.py").write_text(
        "import torch\n"
        "def make():\n"
        "    model = torch.nn.Linear(4, 4)\n"
        "    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "    batch = torch.ones(2, 4)\n"
        f"    return dict(model=model, optimizer=optimizer, batch=batch, loss=lambda model, batch: {loss})\n"
    )
    main(["doctor", "--install", "one_batch:make", "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["one batch"]["found"].startswith(found)
    assert rows["one batch"]["problem"] == problem
