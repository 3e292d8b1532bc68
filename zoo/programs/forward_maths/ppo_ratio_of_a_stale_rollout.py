"""PPO on a stale rollout: one token had log-probability -95 under the behaviour policy; exp of the difference overflows, times an advantage of 0 is NaN.
After https://github.com/radixark/miles/pull/1363 (extreme token log-ratios overflow to inf; inf * 0 when the advantage is zero).
True cause: overflow of exp."""
import torch
from torch import nn


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 6))

    def forward(self, obs):
        return self.net(obs)


def policy_loss(logp, old, adv, eps=0.2):
    ratio = (logp - old).exp()
    un, cl = ratio * adv, ratio.clamp(1 - eps, 1 + eps) * adv
    return -torch.minimum(un, cl).mean()


def build():
    torch.manual_seed(1)
    pi = Policy()
    opt = torch.optim.Adam(pi.parameters(), lr=3e-4)
    g = torch.Generator().manual_seed(2)
    batches = []
    for k in range(5):
        obs, act = torch.randn(10, 8, generator=g), torch.randint(0, 6, (10,), generator=g)
        with torch.no_grad():
            old = torch.log_softmax(pi(obs), -1)[range(10), act] + 0.05 * torch.randn(10, generator=g)
        adv = torch.randn(10, generator=g)
        if k == 3:
            old[7], adv[7] = -95.0, 0.0
        batches.append((obs, act, old, adv))

    def loss_fn(m, b):
        obs, act, old, adv = b
        logp = torch.log_softmax(m(obs), -1).gather(1, act.unsqueeze(1)).squeeze(1)
        return policy_loss(logp, old, adv)

    return dict(model=pi, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="loss", phase="forward", op="aten.exp", first_bad_step=3, line="(logp - old).exp()", sample=7))
