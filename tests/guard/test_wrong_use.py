"""Wrong use gets a clear error: what, why it happens, what to do. The wording is part of the contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nantrap
from guard.loops import make_run, mse
from nantrap import Guard, Policy


def linear() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(2, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def says(text: str, *arguments: Any, **options: Any) -> None:
    with pytest.raises(nantrap.UsageError) as caught:
        Guard(*arguments, **options)
    assert str(caught.value) == text
    assert isinstance(caught.value, ValueError)


def test_model() -> None:
    _, optimizer = linear()
    says("Guard(model=...): expected a torch.nn.Module, got str", "model", optimizer)
    says("Guard(model=ReLU): the model has no parameters, so there is nothing to guard", nn.ReLU(), optimizer)
    lazy = nn.LazyLinear(3)
    says(
        "Guard(model=...): parameter 'weight' is still lazy; run one forward pass before making the guard",
        lazy,
        torch.optim.SGD(lazy.parameters(), lr=0.1),
    )


def test_optimizer() -> None:
    model, optimizer = linear()
    says(
        "Guard(optimizer=...): expected a torch.optim.Optimizer, got list. A wrapped optimizer (Accelerate, DeepSpeed) "
        "is reached as its .optimizer",
        model,
        [],
    )
    says(
        "Guard(model, optimizer): the optimizer owns none of the model's parameters. It was probably made before the "
        "model was replaced, moved or wrapped; make it from model.parameters() again",
        nn.Linear(2, 1),
        optimizer,
    )


def test_options() -> None:
    model, optimizer = linear()
    says("Guard(max_grad_norm=0): expected a positive number, or None not to clip", model, optimizer, max_grad_norm=0)
    says("Guard(scaler=...): expected a torch.amp.GradScaler, got bool", model, optimizer, scaler=True)
    says(
        "Guard(scheduler=ReduceLROnPlateau): it needs a metric, which the guard does not have; leave it out and call "
        "scheduler.step(metric) yourself",
        model,
        optimizer,
        scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
    )
    says(
        "Guard(ema=Linear): expected an AveragedModel, an object with update() or update(model), or a function; a "
        "plain copy of the model does not say how it is updated",
        model,
        optimizer,
        ema=nn.Linear(2, 1),
    )


def test_a_run_dir_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    target = tmp_path / "file" / "run"
    says(
        f"run_dir={str(target)!r} cannot be written: Not a directory. Give another folder, or run_dir=None to keep no "
        "journal",
        *linear(),
        run_dir=target,
    )


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"on_incident": "stop"}, "Policy(on_incident='stop'): choose one of skip, raise, observe"),
        ({"then": "skip"}, "Policy(then='skip'): choose one of rollback, stop"),
        ({"sync": "never"}, "Policy(sync='never'): choose one of auto, step, late"),
        ({"diagnose": True}, "Policy(diagnose=True): choose one of full, locate, off"),
        ({"max_consecutive_skips": -1}, "Policy(max_consecutive_skips=-1): must be at least 0"),
        ({"rollback": 3}, "Policy(rollback=3): expected Rollback(...)"),
        ({"lr_backoff": 0.0}, "Policy(lr_backoff=0.0): a factor above 0 and at most 1; 0.5 halves the learning rate"),
    ],
)
def test_policy(change: dict[str, Any], text: str) -> None:
    with pytest.raises(nantrap.UsageError) as caught:
        Policy(**change)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("group", "change", "text"),
    [
        (nantrap.Skips, {"in_window": -1}, "Skips(in_window=-1): must be at least 0"),
        (nantrap.Skips, {"window": 0}, "Skips(window=0): must be at least 1"),
        (nantrap.Skips, {"scheduler": "go"}, "Skips(scheduler='go'): choose one of hold, advance"),
        (nantrap.Rollback, {"anchor_every": 1.5}, "Rollback(anchor_every=1.5): expected a whole number"),
        (nantrap.Diagnosis, {"seconds": float("nan")}, "Diagnosis(seconds=nan): expected a number"),
        (nantrap.Accumulation, {"bad": "keep"}, "Accumulation(bad='keep'): choose one of drop, window"),
        (nantrap.BatchChecks, {"finite": 1}, "BatchChecks(finite=1): expected True or False"),
        (nantrap.Sampling, {"state_every": -1}, "Sampling(state_every=-1): must be at least 0"),
        (nantrap.Spikes, {"threshold": 0.0}, "Spikes(threshold=0.0): must be above 0"),
        (nantrap.Bundle, {"kind": "all"}, "Bundle(kind='all'): choose one of full, light, off"),
    ],
)
def test_a_group_of_a_policy(group: type[Any], change: dict[str, Any], text: str) -> None:
    with pytest.raises(nantrap.UsageError) as caught:
        group(**change)
    assert str(caught.value) == text


def test_step_without_backward() -> None:
    guard = Guard(*linear())
    with pytest.raises(nantrap.UsageError) as caught:
        guard.step()
    assert str(caught.value) == "guard.step() without guard.backward(loss) before it: there are no gradients"


def test_attempt_inside_a_window() -> None:
    model, optimizer = linear()
    guard = Guard(model, optimizer)
    guard.backward(model(torch.ones(1, 2)).sum())
    with pytest.raises(nantrap.UsageError, match=r"inside a step that guard\.backward began; call guard\.step"):
        guard.attempt(lambda b: model(b).sum(), torch.ones(1, 2))
    assert guard.step().applied


def test_a_closed_guard() -> None:
    model, optimizer = linear()
    guard = Guard(model, optimizer)
    guard.close()
    for call in (guard.step, lambda: guard.backward(model(torch.ones(1, 2)).sum())):
        with pytest.raises(nantrap.UsageError, match=r"^this guard is closed; make a new one$"):
            call()


class ModelOutputs(dict[str, Any]):
    """As transformers gives them: a dict whose entries are attributes too."""

    loss: Tensor


@pytest.mark.parametrize("form", ["backward", "attempt"])
def test_losses(form: str) -> None:
    model, optimizer = linear()
    guard = Guard(model, optimizer)

    def give(loss: Any) -> str:
        with pytest.raises(nantrap.UsageError) as caught:
            guard.backward(loss) if form == "backward" else guard.attempt(lambda _: loss, None)
        return str(caught.value)

    output = model(torch.ones(4, 2))
    assert give(output) == (
        "the loss has shape (4, 1); backward needs a scalar. Reduce it, e.g. loss.mean(), or give a dict of named terms"
    )
    assert give(1.5) == (
        "the loss must be a scalar tensor or a dict of named terms, got float. If it is a float: .item() or float() "
        "cut it off from the graph"
    )
    expected = "the loss must be a scalar tensor or a dict of named terms, got "
    assert give(None) == expected + "NoneType. Does the function that computes it end with `return loss`?"
    assert give((output.mean(), output)) == expected + "tuple. Give the loss alone, without the outputs of the model"
    outputs = ModelOutputs(logits=output)
    outputs.loss = output.mean()
    assert give(outputs) == expected + "ModelOutputs. Give its .loss"
    assert give({"fit": output.mean(), "prior": None}) == (
        "loss term 'prior' is a NoneType; a term is a scalar tensor or a number: leave it out"
    )
    assert give({"fit": "0.5"}) == "loss term 'fit' is a str; a term is a scalar tensor or a number"
    assert give({}) == "the loss is an empty dict; give at least one named term"
    assert give({"fit": output}) == "loss term 'fit' has shape (4, 1); a term is a scalar, or one value per head"
    assert give(output.mean().detach()) == (
        "the loss has no graph, so nothing can learn from it. This happens when it was computed under torch.no_grad() "
        "or inference_mode, when .detach(), .item() or a new torch.tensor(...) cut it off, when every parameter it "
        "depends on is frozen, or when a batch contributes no term at all (e.g. no masked token); skip such a batch "
        "before the guard"
    )
    assert guard.attempt(lambda b: model(b).mean(), torch.ones(4, 2)).applied  # none of it spoiled the guard


def test_lbfgs_in_the_two_line_form() -> None:
    run = make_run(lambda m: torch.optim.LBFGS(m.parameters()), model=lambda: nn.Linear(6, 3))
    guard = run.guard()
    with pytest.raises(nantrap.UsageError) as caught:
        guard.backward(mse(run.model, run.batches[0]))
    assert str(caught.value) == (
        "LBFGS evaluates the loss several times per step, so it cannot be used in the two-line form; use "
        "guard.attempt(fn, batch)"
    )
    with pytest.raises(nantrap.UsageError, match="LBFGS takes one batch per step and no GradScaler"):
        guard.attempt(run.forward, *run.batches[:2])


def late(model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> None:
    policy = Policy(sync="late", **options.pop("policy", {}))
    Guard(model, optimizer, policy=policy, **options)


def test_who_is_told_and_what_is_followed() -> None:
    model, optimizer = linear()
    says("Guard(watch=5): expected names or patterns, or a dict of pattern to Limit", model, optimizer, watch=5)
    text = "Guard(export=5): expected names of exporters in a list, such as ['tensorboard']"
    says(text, model, optimizer, export=5)
    says("Guard(alerts=5): expected nantrap.Alerts(...)", model, optimizer, alerts=5)


def test_what_methods_are_given() -> None:
    guard = Guard(*linear(), quiet=True)
    with pytest.raises(
        nantrap.UsageError, match=r"guard\.attempt\(fn, batch\): fn computes the loss of a batch, got None"
    ):
        guard.attempt(None, None)  # type: ignore[arg-type]
    with pytest.raises(nantrap.UsageError, match=r"guard\.save\(path\): path is a file name, got 5"):
        guard.save(5)  # type: ignore[arg-type]
    with pytest.raises(
        nantrap.UsageError, match=r"check_resume\(lr='x'\): one number, or one for each parameter group"
    ):
        guard.check_resume(lr="x")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"fused": False},
            "AdamW cannot skip a step on the device here; Adam, AdamW, Adagrad and SGD can, with fused=True",
        ),
        ({"policy": {"on_incident": "raise"}}, 'Policy(on_incident="raise") must know of a bad step before its update'),
        ({"ema": lambda: None}, "the ema is no module, so that it cannot be restored on the device"),
        ({"half": True}, "the update of AdamW cannot be proven finite beforehand"),
    ],
)
def test_late_reads_that_are_not_possible_are_said_once(
    options: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = nn.Linear(2, 1).half() if options.pop("half", False) else nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), fused=options.pop("fused", True))
    late(model, optimizer, **options)
    said = capsys.readouterr().err
    assert said.count("each step is read before its update") == 1
    assert words in said
