"""Every example runs as it is, and prints what it is there to show."""

from __future__ import annotations

import importlib.util
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

SHOWS = {
    "two_lines.py": ["step 7 was skipped: log_of_zero", "all weights are finite: True"],
    "masked_row.py": ["step 3 was skipped; its loss was 3.9"],
    "attempt.py": ["step 4: softmax_fully_masked_row, proven: True, samples: (2,)"],
    "mixed_precision.py": ["step 6 was skipped: ", "loss scale: 1024"],
    "accumulation.py": ["step 3: applied True", "dropped micro-batches: 1"],
    "resume.py": ["not saved: ", "resumed after step 20; the weights are finite: True"],
}
OF_FRAMEWORKS = {
    "lightning_trainer.py": ("lightning", ["applied 14 of 16 steps", "the model is finite: True"]),
    "transformers_trainer.py": ("transformers", ["applied 7 of 8 steps", "the model is finite: True"]),
    "accelerate_loop.py": ("accelerate", ["a step was skipped", "learning rate after 4 of 5 steps: 0.006561"]),
}
RUN_BY_OTHER_TESTS = {"ddp.py"}


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*SHOWS, *OF_FRAMEWORKS, *RUN_BY_OTHER_TESTS}


@pytest.mark.parametrize("name", SHOWS)
def test_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    printed = capsys.readouterr().out
    for sentence in SHOWS[name]:
        assert sentence in printed


def test_the_readme_shows_what_its_example_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers and columns depend on the machine and on Python; which lines there are does not."""
    readme = (EXAMPLES.parent / "README.md").read_text(encoding="utf-8")
    monkeypatch.delenv("NANTRAP_VERBOSE")
    shown = readme.partition("$ python examples/masked_row.py\n")[2].partition("```")[0]
    runpy.run_path(str(EXAMPLES / "masked_row.py"), run_name="__main__")
    printed = capsys.readouterr().err
    label = re.compile(r"^ *(= \w+:|help:|more:|error\[NT203\]:)", re.MULTILINE)
    assert label.findall(shown) == label.findall(printed)


@pytest.mark.filterwarnings("ignore")  # of the frameworks themselves
@pytest.mark.parametrize("name", OF_FRAMEWORKS)
def test_example_of_a_framework(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    framework, sentences = OF_FRAMEWORKS[name]
    pytest.importorskip(framework)
    monkeypatch.chdir(tmp_path)  # an adapter makes its run folder where the program is started
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    printed = capsys.readouterr().out
    for sentence in sentences:
        assert sentence in printed


@pytest.mark.filterwarnings("ignore")
def test_a_framework_that_divides_the_loss_once_more_is_not_blamed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Accelerate divides the loss by the number of accumulated steps; the line that made 0/0 is the loop's own."""
    pytest.importorskip("accelerate")
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "accelerate_loop.py"), run_name="__main__")
    said = capsys.readouterr().err
    assert "accelerate_loop.py:27" in said
    assert "accelerator.py" not in said


def test_two_ranks_skip_together() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [*command, str(EXAMPLES / "ddp.py")], check=False, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert "applied 7 of 8 steps; both ranks have the same weights: True" in done.stdout


@pytest.mark.parametrize(
    ("code", "restarts", "told"),
    [(0, 0, []), (3, 0, []), (40, 0, []), (42, 1, ["requeue 7"]), (42, 3, []), (43, 0, ["requeue 7"])]
    + [(41, 0, ["update JobId=7 ExcNodeList=node1", "requeue 7"])],
)
def test_the_slurm_script_queues_again_by_the_exit_code(
    tmp_path: Path, code: int, restarts: int, told: list[str]
) -> None:
    """With stand-ins for `nantrap`, which ends with a code, and for `scontrol`, which notes what it was asked."""
    for name, line in (("nantrap", f"exit {code}"), ("scontrol", f'echo "$@" >> {tmp_path}/told')):
        (tmp_path / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "node1"}
    environment["SLURM_RESTART_COUNT"] = str(restarts)
    script = str(EXAMPLES / "schedulers" / "train.slurm")
    ended = subprocess.run(["bash", script, "train.py"], env=environment, check=False, timeout=20, capture_output=True)
    assert ended.returncode == code
    asked = tmp_path / "told"
    assert (asked.read_text().splitlines() if asked.exists() else []) == told


def test_the_job_of_kubernetes_knows_every_exit_code() -> None:
    """Each code of a stopped run is in one rule, and only the failure that comes again ends the job."""
    from nantrap.launch.runner import BY_KIND, RANK_LOST

    job = yaml.safe_load((EXAMPLES / "schedulers" / "job.yaml").read_text())
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    rules = job["spec"]["podFailurePolicy"]["rules"]
    by_action = {rule["action"]: rule["onExitCodes"]["values"] for rule in rules if "onExitCodes" in rule}
    assert by_action["FailJob"] == [BY_KIND["repeats"]]
    assert by_action["Count"] == [BY_KIND["hardware"], BY_KIND["spent"], RANK_LOST]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert {rule["onExitCodes"]["containerName"] for rule in rules if "onExitCodes" in rule} == {container["name"]}
    assert "--exit-by-kind" in container["command"]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray: pip install 'ray[train]'")
@pytest.mark.parametrize("fault", [None, 22])
def test_ray_makes_no_attempt_that_would_fail_again(tmp_path: Path, fault: int | None) -> None:
    command = [sys.executable, str(EXAMPLES / "schedulers" / "ray_train.py"), "--storage", str(tmp_path)]
    command += [] if fault is None else ["--fault", str(fault)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250, cwd=tmp_path)
    assert ended.returncode == (0 if fault is None else 3), ended.stderr
    said = "trained, the last checkpoint" if fault is None else "stopped, and not tried again: step 5 stopped: data"
    assert said in ended.stdout
    journal = (tmp_path / "nantrap" / "journal-r0.jsonl").read_text()
    assert "run_starts" not in journal, "there was one attempt"
