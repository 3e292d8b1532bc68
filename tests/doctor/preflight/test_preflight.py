"""A preflight of healthy and of faulty models: what it finds, how it says it, what it leaves alone."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import nantrap
from guard.test_every_dtype import KINDS
from nantrap.doctor.preflight.drill import check_guard
from nantrap.doctor.preflight.edges import check_edges, parts_of
from nantrap.doctor.preflight.fresh_model import check_activations, check_first_loss, check_gradients, check_weights
from nantrap.doctor.preflight.margins import check_draws, check_margins
from nantrap.doctor.preflight.subject import Subject, make_subject
from nantrap.errors import UsageError


def classifier(**changes: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=1e-3),
        "batch": (torch.randn(6, 8), torch.randint(0, 4, (6,))),
        "loss": lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]),
        **changes,
    }


def subject(**changes: Any) -> Subject:
    return make_subject(classifier(**changes), {})


def test_a_healthy_model_passes_and_is_left_as_it_was() -> None:
    parts = classifier()
    before = [parameter.clone() for parameter in parts["model"].parameters()]
    stream = torch.get_rng_state()
    report = nantrap.preflight(parts)
    assert report.passed
    assert [check.name for check in report.checks if check.status not in ("ok", "skip")] == []
    assert report.summary == "Sequential, 212 parameters, AdamW with learning rate 0.001, batch of 6"
    assert report.check("first loss").message.endswith("expected about 1.39 (ln 4)")
    assert report.check("edge: NaN in one sample").message == "caught, sample 0 is named"
    held = ["batch", "activation", "loss", "grad", "param", "optimizer", "bitflip", "checkpoint"]
    assert report.check("guard").values["held"] == held
    assert report.check("guard").values["not_applicable"] == ["buffer"]
    assert all(torch.equal(a, b) for a, b in zip(before, parts["model"].parameters(), strict=True))
    assert torch.equal(stream, torch.get_rng_state())
    assert report.to_dict()["schema"] == "nantrap.preflight/1"


def test_edges_are_located_and_explained() -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch[0] / batch[0].norm(dim=1, keepdim=True)), batch[1])

    checks = {check.name: check for check in check_edges(subject(loss=loss))}
    zeros = checks["edge: zeros"]
    assert (zeros.status, zeros.values["cause"]) == ("fail", "division_by_zero")
    assert "test_preflight.py:" in zeros.message
    assert zeros.help
    assert checks["edge: constant"].status == "ok"
    assert checks["edge: all masked"].status == "skip"


class Attention(nn.Module):
    """One head over tokens; a row that is masked everywhere gives NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 20)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(tokens)
        scores = (x @ x.transpose(1, 2)).masked_fill(mask[:, None] == 0, float("-inf"))
        output: Tensor = self.head(scores.softmax(-1) @ x)
        return output


def test_masks_labels_and_lengths_of_sequences() -> None:
    torch.manual_seed(0)
    model = Attention()
    batch = {
        "input_ids": torch.randint(0, 20, (4, 6)),
        "attention_mask": torch.ones(4, 6, dtype=torch.long),
        "labels": torch.randint(0, 20, (4, 6)),
    }

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits = model(batch["input_ids"], batch["attention_mask"])
        return functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())

    tried = make_subject({"model": model, "batch": batch, "loss": loss}, {})
    checks = {check.name: check for check in check_edges(tried)}
    assert checks["edge: all masked"].values["cause"] == "softmax_fully_masked_row"
    assert checks["edge: empty targets"].values["cause"] == "empty_reduction"
    assert checks["edge: shortest"].status == checks["edge: longest"].status == "ok"
    assert checks["edge: zeros"].status == "skip"


def test_what_a_batch_is_made_of() -> None:
    pair = (torch.randn(2, 3), torch.zeros(2, dtype=torch.long))
    assert [part for part, _, _ in parts_of(pair)] == ["input", "label"]
    named = {"x": torch.randn(2), "y": torch.randn(2), "valid": torch.ones(2, dtype=torch.bool)}
    assert [part for part, _, _ in parts_of(named)] == ["input", "label", "mask"]
    assert [part for part, _, _ in parts_of((torch.randn(2), torch.randn(2)))] == ["input", "other"]


def test_the_frames_of_a_video_are_an_input() -> None:
    batch = {"frames": torch.randn(2, 3, 4, 4), "frames_length": torch.tensor([3, 2])}
    assert [part for part, _, _ in parts_of(batch)] == ["input", "other"]


def test_weights() -> None:
    model = classifier()["model"]
    with torch.no_grad():
        model[0].weight.mul_(1000)
    assert check_weights(subject(model=model)).message.startswith("far too large: 0.weight (")
    with torch.no_grad():
        model[0].weight.fill_(0.1)
    assert check_weights(subject(model=model)).message == "one value everywhere: 0.weight"
    with torch.no_grad():
        model[0].weight.normal_()
        model[0].weight[3] = model[0].weight[1]
    assert check_weights(subject(model=model)).message == "rows that are equal: 0.weight"
    with torch.no_grad():
        model[2].bias[0] = float("nan")
    check = check_weights(subject(model=model))
    assert (check.status, check.message) == ("fail", "not finite: 2.bias")


def test_first_loss_far_from_the_expected() -> None:
    sharp = subject(loss=lambda model, batch: functional.cross_entropy(model(batch[0]) / 0.005, batch[1]))
    check = check_first_loss(sharp)
    assert check.status == "warn"
    assert "temperature" in check.help
    assert check_first_loss(subject(expected_loss=9.0)).message.endswith("expected about 9 (given by the factory)")


def test_gradient_flow() -> None:
    deep = nn.Sequential(*(layer for _ in range(12) for layer in (nn.Linear(8, 8), nn.Sigmoid())), nn.Linear(8, 4))
    flow, _ = check_gradients(subject(model=deep))
    assert flow.message.startswith("gradients vanish by ")
    unused = nn.ModuleDict({"used": nn.Linear(8, 4), "unused": nn.Linear(8, 4)})
    loss = lambda model, batch: functional.cross_entropy(model["used"](batch[0]), batch[1])  # noqa: E731
    flow, _ = check_gradients(subject(model=unused, loss=loss))
    assert flow.message == "no gradient reaches unused.weight, unused.bias (2 of 4)"
    dead = classifier()["model"]
    with torch.no_grad():
        dead[0].bias.fill_(-100.0)
    flow, units = check_gradients(subject(model=dead))
    assert units.message == "100% of the units of 1 never fire on this batch"
    assert flow.message == "zero gradient in 0.weight, 0.bias, 2.weight (3 of 4), also after 4 steps"


def test_activations_that_grow() -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(50)
    assert check_activations(subject(model=model)).status == "warn"


def test_margins() -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return model(batch[0]).exp().mean()

    checks = {check.name: check for check in check_margins(subject(loss=loss))}
    assert checks["margin: input scale"].values["breaks_at"] in (1e2, 1e3)
    assert checks["margin: logit scale"].values["breaks_at"] in (1e2, 1e3)
    assert "holds, ×" in checks["margin: input scale"].message
    assert checks["margin: learning rate"].values["safe_factor"] >= 1


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (lambda: 3, "gave an object of type int; a factory returns a dict with model, optimizer, batch, loss, or a"),
        (lambda: 1 / 0, "raised ZeroDivisionError: division by zero$"),
        (lambda config: config, "required positional argument: 'config'; a factory takes no arguments"),
        ({"model": 3}, "model is a int, not a torch module"),
        (nn.ReLU(), "the model has no parameter that can be trained"),
        (nn.LayerNorm(3), "no input can be guessed for this module; return a dict with model, batch and loss"),
        ("no_such_module_here:make", "importing no_such_module_here raised ModuleNotFoundError"),
    ],
)
def test_wrong_use(target: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        nantrap.preflight(target)


@pytest.mark.parametrize(
    "model", [nn.Conv2d(3, 4, 3), nn.Embedding(9, 4), nn.Linear(3, 2), nn.GRU(5, 4, batch_first=True)]
)
def test_a_plain_module_has_defaults(model: nn.Module) -> None:
    made = make_subject(model, {})
    assert len(made.defaults) == 3
    assert torch.isfinite(made.loss(made.model, made.batch))


def test_a_rare_random_value_is_found() -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        times = torch.randint(0, 100, (len(batch[0]), 1))
        return functional.cross_entropy(model(batch[0] + times.float().log()), batch[1])

    check = check_draws(subject(loss=loss))
    assert (check.status, check.values["cause"]) == ("fail", "log_of_zero")
    assert f"not finite after torch.manual_seed({check.values['seed']})" in check.message
    noisy = check_draws(subject(loss=lambda model, batch: model(batch[0] + torch.randn(6, 8)).square().mean()))
    assert (noisy.status, noisy.values["draws"] >= 3) == ("ok", True)
    assert check_draws(subject()).message == "the loss draws no random numbers"


def test_a_failure_of_the_batch_itself_is_reported_once() -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch[0] / batch[0].sub(batch[0]).sum()), batch[1])

    report = nantrap.preflight(classifier(loss=loss))
    complaints = [check.name for check in report.checks if check.status in ("warn", "fail")]
    assert complaints == ["fp32", "first loss"]
    assert report.check("edge: constant").message == "fails as the batch itself does"


def test_a_loss_that_leaves_the_program_ends_the_preflight() -> None:
    report = nantrap.preflight(classifier(loss=lambda model, batch: sys.exit(3)))
    assert [(check.name, check.message) for check in report.failures] == [("fp32", "raised SystemExit: 3")]


def test_a_step_that_cannot_be_made_ends_the_preflight() -> None:
    report = nantrap.preflight(classifier(batch=(torch.randn(6, 7), torch.zeros(6, dtype=torch.long))))
    assert [check.name for check in report.failures] == ["fp32"]
    message = report.failures[0].message
    assert message.startswith("raised RuntimeError: ")
    assert "mat1 and mat2 shapes cannot be multiplied" in message
    assert report.checks[-1].name == "fp32"


def test_labels_that_are_the_input_ids_are_changed_alone() -> None:
    """The batch of a causal language model holds one tensor twice."""

    class Causal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(20, 8), nn.Linear(8, 20)

        def forward(self, ids: Tensor) -> Tensor:
            logits: Tensor = self.head(self.embed(ids))
            return logits

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits = model(batch["input_ids"])[:, :-1]
        return functional.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())

    ids = torch.randint(0, 20, (4, 6), generator=torch.Generator().manual_seed(0))
    tested = subject(model=Causal(), optimizer=None, batch={"input_ids": ids, "labels": ids}, loss=loss)
    found = {check.name: check for check in check_edges(tested)}
    empty = found["edge: empty targets"]
    assert (empty.status, empty.values["cause"], empty.values["error"]) == ("fail", "empty_reduction", "")
    short = found["edge: shortest"]  # one token leaves nothing to predict, which a whole batch rarely does
    assert (short.status, short.values["cause"]) == ("warn", "empty_reduction")


def test_a_layer_that_begins_at_zero_hides_gradients_for_one_step_only() -> None:
    def zeros(layer: nn.Linear) -> nn.Linear:
        nn.init.zeros_(layer.weight)
        return layer

    behind = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), zeros(nn.Linear(16, 16)), nn.Tanh(), zeros(nn.Linear(16, 4)))
    check = check_gradients(subject(model=behind, optimizer=None))[0]
    assert check.status == "ok", check
    assert check.message == (
        "6 parameters; 4 of them get a gradient only after the first steps, since they are behind a layer that begins "
        "at zero"
    )

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return functional.cross_entropy(model[1](model[0](batch[0]) * 0.0), batch[1])  # type: ignore[index]

    cut_off = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    check = check_gradients(subject(model=cut_off, optimizer=None, loss=loss))[0]
    assert check.status == "warn"
    assert check.message == "zero gradient in 0.weight, 0.bias, 1.weight (3 of 4), also after 4 steps"


def test_a_flipped_bit_that_makes_a_weight_infinite_is_held() -> None:
    """The exponent of 1.0 has one bit to go: the weight of a normalisation becomes NaN or Inf, and stays so."""
    model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 4))
    for parameter in model.parameters():
        nn.init.constant_(parameter, 1.5)
    check = check_guard(subject(model=model, optimizer=None))
    assert (check.status, check.values["broken"]) == ("ok", [])


def test_margins_are_searched_from_both_ends() -> None:
    def limited(limit: float) -> Any:
        def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            return functional.cross_entropy(model(batch[0]), batch[1]) / (batch[0].abs().max() < limit)

        return loss

    largest = float(subject().batch[0].abs().max())
    for power in (1, 2, 5, 8):
        check = next(
            each for each in check_margins(subject(loss=limited(largest * 10**power * 0.5))) if "input" in each.name
        )
        assert check.values["safe_factor"] == 10.0 ** (power - 1)
        assert check.values["breaks_at"] == 10.0**power
    free = next(each for each in check_margins(subject(loss=limited(1e30))) if "input" in each.name)
    assert (free.message, free.values["breaks_at"]) == ("×1e+08 still holds (one step)", None)


def test_the_example_of_a_lightning_module_is_named() -> None:
    model = nn.Sequential(nn.Linear(8, 3))
    model.example_input_array = torch.randn(4, 8)
    report = nantrap.preflight(model, guard=False)
    words = [check.message for check in report.checks if check.name == "default"]
    assert "not given, so: the model's example_input_array as the batch" in words


def ignores_zero(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=0)


def aligns(logits: Tensor, labels: Tensor) -> Tensor:
    lengths = torch.full((4,), 6), torch.full((4,), 2)
    return functional.ctc_loss(logits.log_softmax(-1).transpose(0, 1), labels[:, :2], *lengths)


def gathers(logits: Tensor, labels: Tensor) -> Tensor:
    return -logits.log_softmax(-1).gather(2, labels[..., None]).mean()


@pytest.mark.parametrize(("loss", "status"), [(ignores_zero, "fail"), (aligns, "skip"), (gathers, "skip")])
def test_only_a_loss_that_ignores_a_label_gets_nothing_else(loss: Any, status: str) -> None:
    """CTC indexes with -100 without a check, and damages the memory of the process."""
    generator = torch.Generator().manual_seed(0)
    model = nn.Linear(8, 20)
    batch = {
        "x": torch.randn(4, 6, 8, generator=generator),
        "labels": torch.randint(1, 20, (4, 6), generator=generator),
    }
    tested = subject(
        model=model, optimizer=None, batch=batch, loss=lambda model, batch: loss(model(batch["x"]), batch["labels"])
    )
    check = next(check for check in check_edges(tested) if check.name == "edge: empty targets")
    assert (check.status, check.values.get("error", "")) == (status, "")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["masked", "nested", "quint8", "meta", "float8_e8m0fnu", "complex64", "not coalesced"])
def test_tensors_of_every_kind(kind: str) -> None:
    """In the batch, and as a buffer of the model."""

    class Carrying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.register_buffer("odd", KINDS[kind]())

        def forward(self, x: torch.Tensor, odd: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.linear(x)
            return out

    report = nantrap.preflight(
        Carrying(),
        batch={"x": torch.randn(4, 3), "odd": KINDS[kind]()},
        loss=lambda model, batch: model(batch["x"], batch["odd"]).square().mean(),
        guard=False,
    )
    assert not [check.message for check in report.checks if "could not be made" in check.message]
