"""Two networks that are trained in turns: what the updates of one do to the loss of the other."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import nantrap
from nantrap.incident import Incident


def train(rate: float, *, probability: float | None = None) -> Incident:
    """The first incident of a GAN whose losses are logarithms of probabilities; one of these is 0 from step 3 on."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))
    critic = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())
    guards = {
        network: nantrap.Guard(network, torch.optim.SGD(network.parameters(), lr=rate), quiet=True)
        for network in (generator, critic)
    }
    for step in range(30):
        real, noise = torch.randn(32, 16), torch.randn(32, 8)

        def critic_loss(real: Tensor, step: int = step, noise: Tensor = noise) -> Tensor:
            known = critic(real)
            known = known * probability if probability is not None and step == 3 else known
            return -(torch.log(known).mean() + torch.log(1 - critic(generator(noise).detach())).mean())

        def generator_loss(noise: Tensor) -> Tensor:
            return -torch.log(critic(generator(noise))).mean()

        for network, loss, batch in ((critic, critic_loss, real), (generator, generator_loss, noise)):
            incident = guards[network].attempt(loss, batch).incident
            if incident is not None:
                return incident
    raise AssertionError("no incident")


def test_a_network_that_the_loss_reads_was_thrown_away_by_its_own_updates() -> None:
    incident = train(30.0)
    best, *others = incident.causes
    assert (best.slug, best.proven) == ("lr_too_high", True)
    assert "the updates of another network, which this loss reads, threw its weights away" in best.summary
    assert "since step 0 of that network its updates moved the weights by " in best.evidence[0].text
    trial = next(each for each in incident.trials if each.name == "older_weights")
    assert trial.change == "the weights of step 0, and those that the other network had before its updates"
    assert [cause.slug for cause in others] == ["log_of_zero"]


def test_what_another_network_did_in_between_is_not_decided_by_its_own_steps_alone() -> None:
    best, other = train(3.0).causes
    assert (best.slug, best.proven) == ("lr_too_high", False)
    assert (other.slug, other.proven) == ("log_of_zero", False)
    assert other.evidence[-1].text == "not decided against lr_too_high, which comes earlier"


def test_a_probability_of_zero_is_no_question_of_the_rate() -> None:
    (best,) = train(1e-3, probability=0.0).causes
    assert (best.slug, best.proven) == ("log_of_zero", True)
