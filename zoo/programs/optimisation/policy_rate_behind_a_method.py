"""PPO on a toy task: the loop calls `agent.evaluate(...)`, never `agent(...)`; Adam's rate of 30 throws the log of the deviation to -30.
True cause: the learning rate. A safe division would only hide that every weight moved by 30."""
import torch, torch.nn as nn
from torch.distributions import Normal

class Agent(nn.Module):
    def __init__(s, seen=6, acts=2):
        super().__init__()
        s.critic = nn.Sequential(nn.Linear(seen, 64), nn.Tanh(), nn.Linear(64, 1))
        s.mean = nn.Sequential(nn.Linear(seen, 64), nn.Tanh(), nn.Linear(64, acts))
        s.log_std = nn.Parameter(torch.zeros(1, acts))
    def evaluate(s, x, action):
        mean = s.mean(x)
        std = s.log_std.expand_as(mean).exp()
        return Normal(mean, std, validate_args=False).log_prob(action).sum(1), std.log().sum(1), s.critic(x).view(-1)

def build():
    torch.manual_seed(1); agent = Agent(); g = torch.Generator().manual_seed(11)
    opt = torch.optim.Adam(agent.parameters(), lr=30.0, eps=1e-5)
    batches = []
    for _ in range(10):
        x, eps = torch.randn(32, 6, generator=g), torch.randn(32, 2, generator=g)
        batches.append((x, 0.3 * eps, -0.5 * (0.3 * eps).square().sum(1) - 1.84, torch.rand(32, generator=g), -x[:, 0].square()))
    def loss_fn(agent, b):
        x, action, old, adv, returns = b
        new, entropy, value = agent.evaluate(x, action)
        ratio = (new - old).exp()
        policy = torch.max(-adv * ratio, -adv * ratio.clamp(0.8, 1.2)).mean()
        return policy - 0.01 * entropy.mean() + 0.25 * (value - returns).square().mean()
    return dict(model=agent, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=10, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="loss", phase="backward", op="aten.div", first_bad_step=1, line="log_prob(action)"))
