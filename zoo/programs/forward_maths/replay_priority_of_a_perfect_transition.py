"""DQN with a prioritised replay buffer kept in Python. Priorities are |TD error| without an epsilon. The value head starts at zero, and
transition 3 is terminal with a reward of zero: its TD error at step 0 is exactly zero, and so is the priority that is stored. When it
is replayed at step 3, its importance weight (N * P) ** -beta is Inf, and dividing by the largest weight gives Inf / Inf. A large reward
at step 1 makes the gradient norm jump; that is innocent. The true cause is the division by a probability of zero."""
import torch
from torch import nn


class DuelingQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 32), nn.ReLU())
        self.value, self.adv = nn.Linear(32, 1), nn.Linear(32, 3)
        for layer in (self.value, self.adv):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, obs):
        h = self.body(obs)
        a = self.adv(h)
        return self.value(h) + a - a.mean(1, keepdim=True)


class Replay:
    def __init__(self, n):
        self.data = dict(obs=torch.randn(n, 4), act=torch.randint(0, 3, (n,)), rew=torch.randn(n).abs() + 0.1,
                         nxt=torch.randn(n, 4), done=torch.zeros(n))
        self.priority = torch.ones(n)

    def weights(self, idx, alpha=0.6, beta=0.4):
        prob = self.priority ** alpha / (self.priority ** alpha).sum()
        w = (len(prob) * prob[idx]) ** -beta
        return w / w.max()


def build():
    torch.manual_seed(40)
    model = DuelingQ()
    replay = Replay(24)
    replay.data["rew"][3], replay.data["done"][3] = 0.0, 1.0
    replay.data["rew"][9] = 400.0

    def loss_fn(model, idx):
        b = {k: v[idx] for k, v in replay.data.items()}
        with torch.no_grad():
            target = b["rew"] + 0.9 * (1 - b["done"]) * model(b["nxt"]).max(1).values
        td = target - model(b["obs"]).gather(1, b["act"][:, None]).squeeze(1)
        weight = replay.weights(idx)
        replay.priority[idx] = td.detach().abs()
        return (weight * nn.functional.smooth_l1_loss(td, torch.zeros_like(td), reduction="none")).mean()

    order = [[0, 1, 2, 3], [4, 5, 9, 6], [7, 8, 10, 11], [12, 3, 13, 1], [14, 15, 16, 2]]
    batches = [torch.tensor(o) for o in order]
    truth = dict(
        cause="division_by_zero", first_bad_step=3, phase="forward", module="loss", op="aten.pow", also_op=["aten.div", "aten.reciprocal"],
        line="w = (len(prob) * prob[idx]) ** -beta",
        why="transition 3 was stored with a priority of exactly zero at step 0; its importance weight divides by that probability",
        repair=("td.detach().abs()", "td.detach().abs() + 1e-3"), **{"not": ["exploding_gradient", "lr_too_high"]},
    )
    return dict(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3), batches=batches, loss_fn=loss_fn, steps=5,
                autocast_dtype=None, truth=truth)
