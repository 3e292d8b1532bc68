"""PPO with invalid-action masking: logits of illegal moves are -inf. The policy loss only reads the log-probability of the action
taken, which is legal; but the entropy bonus is written as -(p * log p).sum(), and 0 * -inf is NaN for every illegal move.
Masks appear only from step 2 on (the first levels allow every move), and the ratio exp(new - old) is large but finite.
True cause: zero times inf in the entropy."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class ActorCritic(nn.Module):
    def __init__(self, obs=6, actions=5):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, 32), nn.Tanh())
        self.pi, self.v = nn.Linear(32, actions), nn.Linear(32, 1)

    def forward(self, obs, legal):
        h = self.body(obs)
        logits = self.pi(h)
        if not legal.all():
            logits = logits.masked_fill(~legal, float("-inf"))
        return F.log_softmax(logits, dim=-1), self.v(h).squeeze(-1)


def entropy(logp):
    return -(logp.exp() * logp).sum(-1)


def ppo_loss(m, b, clip=0.2):
    logp_all, value = m(b["obs"], b["legal"])
    logp = logp_all.gather(-1, b["action"][:, None]).squeeze(-1)
    ratio = torch.exp(logp - b["old_logp"])
    surrogate = torch.minimum(ratio * b["adv"], ratio.clamp(1 - clip, 1 + clip) * b["adv"])
    return -surrogate.mean() + 0.5 * F.mse_loss(value, b["ret"]) - 0.01 * entropy(logp_all).mean()


def build():
    torch.manual_seed(0)
    model = ActorCritic()
    opt = torch.optim.Adam(model.parameters(), lr=3e-4)
    g = torch.Generator().manual_seed(3)
    batches = []
    for i in range(5):
        legal = torch.ones(16, 5, dtype=torch.bool)
        action = torch.randint(0, 4, (16,), generator=g)
        if i >= 2:
            legal[::3, 4] = False
        old = torch.full((16,), -1.6)
        old[3] = -9.0
        batches.append(dict(obs=torch.randn(16, 6, generator=g), legal=legal, action=action, old_logp=old,
                            adv=torch.randn(16, generator=g), ret=torch.randn(16, generator=g)))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=ppo_loss, steps=4, autocast_dtype=None,
                truth=dict(cause="zero_times_inf", module="loss", phase="forward", op="aten.mul", first_bad_step=2))
