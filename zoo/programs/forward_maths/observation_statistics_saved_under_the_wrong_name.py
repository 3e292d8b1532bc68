"""A policy is warm-started with the observation statistics of an earlier run. The export wrote the mean into the field of the variance; one mean is negative.
After https://github.com/ugr-sail/sinergym/pull/422 (the environment saved the mean as the var property; negative values give NaN observations).
True cause: the root of a negative variance, which came from the saved statistics."""
import torch
from torch import nn


class ObservationNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("var", torch.ones(dim))

    def forward(self, obs):
        return ((obs - self.mean) / torch.sqrt(self.var + 1e-8)).clamp(-10, 10)


class ActorCritic(nn.Module):
    def __init__(self, dim, actions):
        super().__init__()
        self.norm = ObservationNorm(dim)
        self.torso = nn.Sequential(nn.Linear(dim, 32), nn.Tanh())
        self.pi = nn.Linear(32, actions)
        self.v = nn.Linear(32, 1)

    def forward(self, obs):
        h = self.torso(self.norm(obs))
        return torch.distributions.Categorical(logits=self.pi(h), validate_args=False), self.v(h).squeeze(-1)


def export_calibration(obs):
    mean, var = obs.mean(0), obs.var(0)
    fields = {"mean": mean, "var": var}
    return {name: fields["mean"].clone() for name in fields}         # a copy of the line above it


def build():
    torch.manual_seed(4)
    g = torch.Generator().manual_seed(9)
    history = torch.randn(200, 4, generator=g) + torch.tensor([22.0, 48.0, -3.5, 0.7])
    policy = ActorCritic(4, 3)
    calibration = export_calibration(history)
    opt = torch.optim.Adam(policy.parameters(), lr=3e-4)

    def rollouts():
        for k in range(6):
            if k == 3:                                  # evaluation of the old agent is over: continue it with its calibration
                policy.norm.load_state_dict(calibration)
            obs = torch.randn(16, 4, generator=g) + torch.tensor([22.0, 48.0, -3.5, 0.7])
            yield obs, torch.randint(0, 3, (16,), generator=g), torch.randn(16, generator=g)

    def loss_fn(model, rollout):
        obs, action, ret = rollout
        dist, value = model(obs)
        advantage = (ret - value).detach()
        return -(dist.log_prob(action) * advantage).mean() + 0.5 * (ret - value).square().mean()

    return dict(model=policy, optimizer=opt, batches=rollouts(), loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="domain_error", also=("corrupt_checkpoint", "state_overwritten"), module="norm", phase="forward", op="aten.sqrt", first_bad_step=3,
                           line="torch.sqrt(self.var + 1e-8)", why="the third value of the loaded variance is a mean of about -3.5"))
