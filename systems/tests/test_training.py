"""The loop: guarded and plain are the same without a fault, a resumed run is the same as one that never stopped."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
import torch

from nantrap_systems import load_system
from nantrap_systems.log import ProgressLine, Voice
from nantrap_systems.script import main
from nantrap_systems.system import Run
from nantrap_systems.training import Step, guard_of, mean_of_last, total, train

SMALL = {"model.hidden_size": 32, "model.depth": 1, "training.batch_size": 4}
SMALL_OPTIONS = [f"--set={name}={value}" for name, value in SMALL.items()]


def parameters(run: Run) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in run.model.parameters()])


@pytest.mark.parametrize("micro", [1, 3])
def test_guarded_and_plain_are_bit_identical(micro: int) -> None:
    changes = {**SMALL, "training.gradient_accumulation_steps": micro}
    system = load_system("pixeldlm")
    plain, guarded = system.run(changes=changes), system.run(changes=changes)
    torch.manual_seed(5)
    losses = [step.loss for step in train(plain, steps=6)]
    torch.manual_seed(5)
    with guard_of(guarded, quiet=True) as guard:
        steps = list(train(guarded, steps=6, guard=guard))
    assert [step.loss for step in steps] == pytest.approx(losses, rel=1e-6)  # the mean over micro-batches is rounded
    assert all(step.applied and step.incident is None for step in steps)
    assert torch.equal(parameters(plain), parameters(guarded))


def test_evaluation_leaves_the_random_stream_and_the_mode_alone() -> None:
    run = load_system("pixeldlm").run(changes=SMALL)
    before = torch.get_rng_state()
    assert run.evaluate() == run.evaluate()
    assert torch.equal(torch.get_rng_state(), before)
    assert run.model.training


def test_a_resumed_run_is_the_run_that_never_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    system = load_system("pixeldlm")

    def script(folder: str, *options: str) -> None:
        arguments = ["--run-dir", str(tmp_path / folder), "--evaluate-every=100", *SMALL_OPTIONS, *options]
        assert main(system, arguments) == 0

    script("whole", "--steps=6")
    script("parts", "--steps=2")
    script("parts", "--steps=4", "--resume=last_good")
    err = capsys.readouterr().err
    assert "step 6/6, " in err
    evaluations = [line for line in err.splitlines() if line.startswith("evaluation after 6 steps")]
    assert len(evaluations) == 2
    assert evaluations[0] == evaluations[1]
    states = [system.run(changes=SMALL) for _ in range(2)]
    from nantrap.checkpoints import CheckpointStore

    for run, folder in zip(states, ("whole", "parts"), strict=True):
        CheckpointStore(tmp_path / folder / "checkpoints").load(model=run.model)
    assert torch.equal(parameters(states[0]), parameters(states[1]))


def test_the_plain_script_knows_nothing_of_the_guard_and_saves_no_nan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--fault=mask_product", "--steps=16", "--run-dir", str(tmp_path), *SMALL_OPTIONS, "--seed=2"]
    options += ["--set=training.batch_size=16"]
    assert main(load_system("pixeldlm"), options) == 0
    err = capsys.readouterr().err
    assert "Ep 1/1: 100% step 16/16, " in err, "the share of the steps that this run makes"
    assert "loss=nan" in err
    assert "no checkpoint: " in err
    assert "skipped" not in err
    assert not (tmp_path / "journal-r0.jsonl").exists()


def test_the_guarded_script_skips_and_writes_the_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--fault=mask_product", "--steps=16", "--run-dir", str(tmp_path), *SMALL_OPTIONS, "--seed=2", "--guard"]
    options += ["--set=training.batch_size=16"]
    assert main(load_system("pixeldlm"), options) == 0
    err = capsys.readouterr().err
    assert "error[NT303]" in err
    assert "checkpoint: " in err
    assert (tmp_path / "journal-r0.jsonl").exists()
    log = (tmp_path / "latest.log").read_text()
    assert re.search(r"^ERROR: NaN or Inf in step \d+: NT303 ", log, re.M)


def test_on_a_terminal_the_line_is_rewritten_and_messages_replace_it(tmp_path: Path) -> None:
    screen = Screen()
    voice = Voice(screen)
    voice.write_to(tmp_path)
    line = ProgressLine(3, epoch_steps=2, voice=voice)
    line.show(Step(0, 1.5, True), 1e-3)
    voice.say("checkpoint: a")
    line.show(Step(1, 1.25, False), 1e-3)
    line.show(Step(2, 1.0, True), 1e-3)
    voice.close()
    shown = screen.getvalue().replace("\x1b[K", "").split("\n")
    assert re.fullmatch(r"Ep 1/2:  50% step 1/3, .* loss=1.500, lr=1.00e-03\rcheckpoint: a", shown[0])
    assert re.fullmatch(r"Ep 1/2: 100% .*\(skipped\)\rEp 2/2: 100% step 3/3, .* loss=1.000, lr=1.00e-03", shown[1])
    logged = (tmp_path / "latest.log").read_text().splitlines()
    assert logged[0] == "checkpoint: a"
    assert len(logged) == 2, "the log gets a line at intervals, and the last one"


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_stop_of_the_guard_is_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--fault=adaln_scale", "--guard", "--steps=30", *SMALL_OPTIONS]
    assert main(load_system("pixeldlm"), options) == 3
    assert "stopped: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--fault=none"], "has no fault"),
        (["--resume=latest"], "--resume needs --run-dir"),
        (["--set=training.optimizer=adam"], "choose adamw or sgd"),
        (["--set=training.mixed_precision=fp8"], "choose no, bf16, fp16"),
        (["--set=diffusion.noise_schedule=square"], "choose linear or cosine"),
        (["--config=absent.yaml"], "absent.yaml"),
    ],
)
def test_wrong_use_is_exit_code_2(options: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(load_system("pixeldlm"), options) == 2
    assert words in capsys.readouterr().err


def test_terms_are_summed() -> None:
    assert total({"a": torch.tensor(1.0), "b": torch.tensor(2.0)}).item() == 3.0
    assert mean_of_last([5.0, 1.0, 3.0], 2) == 2.0
    assert mean_of_last([]) != mean_of_last([])  # NaN
