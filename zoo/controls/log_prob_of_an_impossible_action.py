"""Invalid actions have the logit -inf; the entropy treats p log p with masked_fill, and the sampled actions are always valid. Healthy."""
import torch
import torch.nn as nn


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, obs, legal):
        return self.pi(obs).masked_fill(~legal, float("-inf")).log_softmax(-1)


def build():
    torch.manual_seed(5)
    agent = nn.ModuleDict({"agent": Agent()})
    g = torch.Generator().manual_seed(6)
    rollouts = []
    for _ in range(4):
        legal = torch.rand(10, 4, generator=g) < 0.6
        act = torch.randint(0, 4, (10,), generator=g)
        legal[range(10), act] = True
        rollouts.append((torch.randn(10, 5, generator=g), legal, act, torch.randn(10, generator=g)))

    def loss_fn(m, r):
        obs, legal, act, adv = r
        logp = m["agent"](obs, legal)
        safe = logp.masked_fill(~legal, 0.0)
        entropy = -(safe.exp() * safe).masked_fill(~legal, 0.0).sum(1)
        return -(safe[range(10), act] * adv).mean() - 0.01 * entropy.mean()

    return dict(model=agent, optimizer=torch.optim.Adam(agent.parameters(), lr=1e-3), batches=rollouts, steps=8, autocast_dtype=None, loss_fn=loss_fn,
                truth=dict(cause="benign", first_bad_step=None))
