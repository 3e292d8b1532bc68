"""PPO with a rate of 3: after the first update the new policy gives the old actions other log-probabilities by hundreds, and the ratio overflows.
After https://github.com/EmbarkStudios/emote/issues/20 (NaNs very early when the learning rate is higher than about 3e-3).
True cause: the learning rate is too high; the overflowing ratio is its symptom."""
import math
import torch
from torch import nn


class Actor(nn.Module):
    def __init__(self, obs=5, act=2):
        super().__init__()
        self.mean = nn.Sequential(nn.Linear(obs, 32), nn.Tanh(), nn.Linear(32, act))
        self.log_std = nn.Parameter(torch.zeros(act))

    def log_prob(self, obs, a):
        z = (a - self.mean(obs)) / self.log_std.exp()
        return (-0.5 * z.square() - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)


def build():
    torch.manual_seed(0)
    actor = Actor()
    opt = torch.optim.Adam(actor.parameters(), lr=3.0)
    g = torch.Generator().manual_seed(1)
    rollouts = []
    for _ in range(3):
        obs = torch.randn(64, 5, generator=g)
        with torch.no_grad():
            a = actor.mean(obs) + torch.randn(64, 2, generator=g) * 12
            rollouts.append(dict(obs=obs, act=a, old=actor.log_prob(obs, a), adv=torch.randn(64, generator=g)))

    def surrogate(pi, r, clip=0.2):
        ratio = torch.exp(pi.log_prob(r["obs"], r["act"]) - r["old"])
        return -torch.min(ratio * r["adv"], ratio.clamp(1 - clip, 1 + clip) * r["adv"]).mean()

    return dict(model=actor, optimizer=opt, batches=[r for r in rollouts for _ in range(4)], loss_fn=surrogate, steps=8, autocast_dtype=None,
                truth=dict(cause="lr_too_high", also=("exp_overflow",), module="loss", phase="forward", op="aten.exp", first_bad_step=1, line="ratio = torch.exp("))
