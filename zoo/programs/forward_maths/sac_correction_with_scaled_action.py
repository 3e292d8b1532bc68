"""SAC: the tanh correction uses the action after it was multiplied by the action limit 2, so that 1 - a^2 is negative and its log is NaN.
After https://github.com/philtabor/Actor-Critic-Methods-Paper-To-Code/issues/7 (negative values inside the log, which produce nan).
True cause: the logarithm leaves its domain (zero or less)."""
import torch
import torch.nn as nn
from torch.distributions import Normal


class ActorNetwork(nn.Module):
    def __init__(self, max_action):
        super().__init__()
        self.fc = nn.Linear(4, 24)
        self.mu, self.sigma = nn.Linear(24, 2), nn.Linear(24, 2)
        self.max_action, self.reparam_noise = max_action, 1e-6

    def forward(self, s):
        h = torch.relu(self.fc(s))
        return self.mu(h), self.sigma(h).clamp(self.reparam_noise, 1)

    def correction(self, actions):
        action = torch.tanh(actions) * self.max_action
        return torch.log(1 - action.pow(2) + self.reparam_noise)


def build():
    torch.manual_seed(0)
    model = nn.ModuleDict({"actor": ActorNetwork(2.0)})
    opt = torch.optim.Adam(model.parameters(), lr=3e-4)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 4, generator=g) * 0.2, torch.randn(8, 2, generator=g) * 0.1) for _ in range(3)]
    batches.append((torch.randn(8, 4, generator=g) * 0.2, torch.full((8, 2), 60.0)))

    def loss_fn(m, b):
        mu, sigma = m["actor"](b[0])
        raw = mu * 0.1 + (sigma + 0.02) * b[1]
        logp = Normal(mu, sigma + 1).log_prob(raw) - m["actor"].correction(raw)
        return logp.sum(1).mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="log_of_zero", also=("domain_error",), disputed="the argument is negative, not zero", module="loss", phase="forward", op="aten.log", first_bad_step=3, line="torch.log(1 - action.pow(2)"))
