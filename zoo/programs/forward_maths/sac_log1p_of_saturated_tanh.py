"""SAC: the log-probability of a tanh-squashed action subtracts log1p(-tanh(a)^2). From step 3 on the replay buffer returns states where
the actor is saturated (pre-activation about 12): tanh is exactly 1 in float32 and log1p(-1) is -inf.
True cause: logarithm of zero. States, rewards and rate are ordinary."""
import torch
import torch.nn as nn


class Actor(nn.Module):
    def __init__(self, obs=5, act=2):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(obs, 32), nn.ReLU())
        self.mu, self.log_std = nn.Linear(32, act), nn.Linear(32, act)

    def forward(self, s, noise):
        h = self.body(s)
        mu, log_std = self.mu(h), self.log_std(h).clamp(-5, 2)
        pre = mu + log_std.exp() * noise
        action = torch.tanh(pre)
        logp = -0.5 * noise.pow(2) - log_std - 0.919 - torch.log1p(-action.pow(2))
        return action, logp.sum(-1)


class Sac(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = Actor()
        self.critic = nn.Sequential(nn.Linear(7, 32), nn.ReLU(), nn.Linear(32, 1))


def build():
    torch.manual_seed(0)
    model = Sac()
    with torch.no_grad():                                    # trained long ago: joint 1 pushes to its stop when sensor 4 says so
        model.actor.body[0].weight[0] = torch.tensor([0.0, 0.0, 0.0, 0.0, 6.0])
        model.actor.body[0].bias[0] = 0.0
        model.actor.mu.weight[1, 0] = 2.0
    opt = torch.optim.Adam(model.actor.parameters(), lr=3e-4)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(6):
        s = torch.rand(8, 5, generator=g) * 0.4 - 0.2
        if i >= 3:
            s[5, 4] = 1.0
        batches.append((s, torch.randn(8, 2, generator=g)))

    def loss_fn(m, b):
        s, noise = b
        action, logp = m.actor(s, noise)
        return (0.2 * logp - m.critic(torch.cat([s, action], -1)).squeeze(-1)).mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="actor", phase="forward", op="aten.log1p", first_bad_step=3))
