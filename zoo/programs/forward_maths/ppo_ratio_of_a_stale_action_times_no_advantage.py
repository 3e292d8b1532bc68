"""PPO on rollouts from an asynchronous worker. Batch 3 carries one action whose behaviour log-probability came from a worker many
versions behind: -140. Its advantage is exactly zero. The clipped surrogate computes the unclipped branch as well: exp(138) is Inf, Inf
times 0 is NaN, and min() takes the NaN. The true cause is that exp of the log-ratio overflows."""
import torch
from torch import nn


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 32), nn.Tanh())
        self.pi = nn.Linear(32, 4)
        self.v = nn.Linear(32, 1)

    def forward(self, obs):
        h = self.trunk(obs)
        return torch.distributions.Categorical(logits=self.pi(h)), self.v(h).squeeze(-1)


def loss_fn(model, batch):
    dist, value = model(batch["obs"])
    logratio = dist.log_prob(batch["act"]) - batch["old_logp"]
    ratio = logratio.exp()
    adv = batch["adv"]
    surrogate = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
    return -surrogate.mean() + 0.5 * (value - batch["ret"]).pow(2).mean() - 0.01 * dist.entropy().mean()


def build():
    torch.manual_seed(0)
    model = ActorCritic()
    batches = []
    for _ in range(6):
        obs, act = torch.randn(16, 6), torch.randint(0, 4, (16,))
        adv = torch.randn(16)
        with torch.no_grad():
            old = model(obs)[0].log_prob(act)
        batches.append(dict(obs=obs, act=act, old_logp=old, adv=(adv - adv.mean()) / (adv.std() + 1e-8), ret=torch.randn(16)))
    batches[3]["old_logp"][5] = -140.0
    batches[3]["adv"][5] = 0.0
    truth = dict(
        cause="exp_overflow", also=["input_out_of_scale"], first_bad_step=3, phase="forward", module="loss", op="aten.exp", also_op=["aten.mul"],
        line="ratio = logratio.exp()", sample=5, bad_path="old_logp",
        why="the log-ratio of sample 5 is about 138, above 88.7: the ratio is Inf, and Inf times the zero advantage is NaN",
        repair=("logratio.exp()", "logratio.clamp(-20, 20).exp()"),
    )
    return dict(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=3e-4, eps=1e-5), batches=batches, loss_fn=loss_fn,
                steps=6, autocast_dtype=None, truth=truth)
