"""Factories with a known weakness each, as people write them, and healthy ones.

`WEAK` says which checks must warn or fail, and with which cause where one is named. Everything else must be quiet.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Parts = dict[str, Any]
Factory = Callable[[], Parts]
WEAK: dict[str, tuple[Factory, dict[str, str]]] = {}
"""By name: the factory, and for each check that must complain its status, with the cause behind a colon."""
SOUND: dict[str, Factory] = {}


def weak(**checks: str) -> Callable[[Factory], Factory]:
    def add(make: Factory) -> Factory:
        WEAK[make.__name__] = make, {name.replace("__", ": ").replace("_", " "): text for name, text in checks.items()}
        return make

    return add


def sound(make: Factory) -> Factory:
    SOUND[make.__name__] = make
    return make


def parts(model: nn.Module, batch: Any, loss: Any, lr: float = 1e-3, **more: Any) -> Parts:
    return {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters(), lr=lr),
        "batch": batch,
        "loss": loss,
        **more,
    }


def mlp(*sizes: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), activation()]
    return nn.Sequential(*layers[:-1])


def labelled(size: int = 16, width: int = 12, classes: int = 5) -> tuple[Tensor, Tensor]:
    return torch.randn(size, width), torch.randint(0, classes, (size,))


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


# ---- inputs that occur one day


@weak(edge__zeros="fail:division_by_zero", edge__constant="fail:division_by_zero")
def standardises_each_sample() -> Parts:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, labels = batch
        x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
        return functional.cross_entropy(model(x), labels)

    return parts(mlp(12, 24, 5), labelled(), loss)


@weak(edge__zeros="fail:singular_gradient_at_zero")
def distance_without_an_eps() -> Parts:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).square().sum(1).sqrt().mean()

    model = nn.Sequential(nn.Linear(12, 24, bias=False), nn.Tanh(), nn.Linear(24, 6, bias=False))
    return parts(model, torch.randn(16, 12), loss)


@weak(edge__zeros="fail:log_of_zero", edge__negative="fail")
def logarithm_of_the_input() -> Parts:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return functional.mse_loss(model(batch["x"].log()), batch["target"])

    return parts(mlp(12, 24, 1), {"x": torch.rand(16, 12) + 0.1, "target": torch.randn(16, 1)}, loss)


class Attention(nn.Module):
    """One layer of masked attention over token ids."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.query, self.key, self.value = (nn.Linear(16, 16) for _ in range(3))
        self.head = nn.Linear(16, 4)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        scores = self.query(x) @ self.key(x).transpose(1, 2) / 4
        scores = scores.masked_fill(attention_mask[:, None] == 0, float("-inf"))
        return self.head((scores.softmax(-1) @ self.value(x)).mean(1))


@weak(edge__all_masked="fail:softmax_fully_masked_row")
def attention_over_an_empty_text() -> Parts:
    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch["input_ids"], batch["attention_mask"]), batch["labels"])

    mask = torch.ones(8, 10, dtype=torch.long)
    mask[:, 7:] = 0
    ids = torch.randint(0, 50, (8, 10))
    return parts(Attention(), {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(0, 4, (8,))}, loss)


@weak(edge__empty_targets="fail:empty_reduction", edge__shortest="warn:empty_reduction")
def language_model_on_ignored_labels() -> Parts:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(40, 16), nn.Linear(16, 40)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.embedding(ids))  # type: ignore[no-any-return]

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return functional.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())

    ids = torch.randint(0, 40, (6, 9))
    labels = ids.clone()
    labels[:, :3] = -100
    return parts(Model(), {"input_ids": ids, "labels": labels}, loss)


@weak(edge__one_sample="warn")
def batch_norm_and_the_last_batch() -> Parts:
    model = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 5))
    return parts(model, labelled(), cross_entropy)


@weak(edge__one_sample="fail")
def deviation_over_the_batch() -> Parts:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        z = model(batch)
        return functional.relu(1 - z.std(0)).mean() + 0.1 * z.square().mean()

    return parts(mlp(12, 24, 8), torch.randn(16, 12), loss)


@weak(edge__huge="warn:exp_overflow")
def exponential_of_the_output() -> Parts:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        mean, log_variance = model(batch).chunk(2, dim=1)
        return (log_variance.exp() + mean.square() - log_variance - 1).mean()

    return parts(mlp(12, 24, 8), torch.randn(16, 12), loss)


# ---- initialisation


@weak(initialisation="warn", first_loss="warn")
def weights_drawn_from_a_unit_normal() -> Parts:
    model = mlp(12, 256, 256, 5)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight)
    return parts(model, labelled(), cross_entropy)


@weak(initialisation="warn")
def every_weight_is_the_same() -> Parts:
    model = mlp(12, 24, 5, activation=nn.Tanh)
    nn.init.constant_(model[0].weight, 0.1)  # type: ignore[arg-type]
    return parts(model, labelled(), cross_entropy)


@weak(initialisation="fail", fp32="fail:uninitialised_memory")
def a_parameter_that_nobody_initialised() -> Parts:
    model = mlp(12, 24, 5)
    with torch.no_grad():
        model[2].bias.fill_(math.nan)  # type: ignore[union-attr, operator]
    return parts(model, labelled(), cross_entropy)


# ---- gradients


@weak(gradient_flow="warn", dead_units="warn")
def units_that_never_fire() -> Parts:
    model = mlp(12, 24, 5)
    with torch.no_grad():
        model[0].bias.fill_(-20.0)  # type: ignore[union-attr, operator]
    return parts(model, labelled(), cross_entropy)


@weak(gradient_flow="warn")
def a_branch_that_is_not_used() -> Parts:
    model = nn.ModuleDict({"used": mlp(12, 24, 5), "unused": nn.Linear(5, 5)})
    return parts(model, labelled(), lambda model, batch: functional.cross_entropy(model["used"](batch[0]), batch[1]))


@weak(gradient_flow="warn")
def a_deep_stack_of_sigmoids() -> Parts:
    return parts(mlp(12, *[24] * 9, 5, activation=nn.Sigmoid), labelled(), cross_entropy)


# ---- precision and margins


@weak(fp16="warn")
def logits_beyond_half_precision() -> Parts:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        energy = model(batch[0]) * 1e6
        return functional.cross_entropy(energy @ torch.eye(5) / 1e6, batch[1])

    return parts(mlp(12, 24, 5), labelled(), loss)


@weak(margin__learning_rate="warn")
def a_learning_rate_at_its_limit() -> Parts:
    model = nn.Linear(12, 1)
    batch = torch.randn(16, 12), torch.randn(16, 1)
    made = parts(model, batch, lambda model, batch: functional.mse_loss(model(batch[0]), batch[1]))
    return {**made, "optimizer": torch.optim.SGD(model.parameters(), lr=0.3)}


# ---- healthy


@sound
def a_plain_classifier() -> Parts:
    return parts(mlp(12, 24, 5, activation=nn.GELU), labelled(), cross_entropy)


@sound
def an_autoencoder_with_layer_norm() -> Parts:
    model = nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 6), nn.GELU(), nn.Linear(6, 12))
    return parts(model, torch.randn(16, 12), lambda model, batch: functional.smooth_l1_loss(model(batch), batch))


@sound
def attention_with_a_finite_mask() -> Parts:
    class Finite(Attention):
        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            x = self.embedding(input_ids)
            scores = self.query(x) @ self.key(x).transpose(1, 2) / 4
            scores = scores.masked_fill(attention_mask[:, None] == 0, -1e4)
            return self.head((scores.softmax(-1) @ self.value(x)).mean(1))  # type: ignore[no-any-return]

    return {
        **attention_over_an_empty_text(),
        "model": (model := Finite()),
        "optimizer": torch.optim.AdamW(model.parameters()),
    }


@sound
def a_loss_of_two_views() -> Parts:
    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        first, second = model(batch), model(batch.flip(1))
        return functional.mse_loss(first, second) + functional.mse_loss(first, batch)

    return parts(mlp(12, 24, 12, activation=nn.GELU), torch.randn(16, 12), loss)
