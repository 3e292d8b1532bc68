"""REINFORCE over two tasks with a running reward scaler per task, kept in NumPy. The scaler is Welford's, with the unbiased variance:
after one episode it divides zero by zero. The first task was warmed up before training; the second appears at step 2, and its scaler is
asked after a single return. NumPy's warning is switched off, as in most launch scripts. The true cause is the deviation of one element."""
import numpy as np
import torch
from torch import nn


class RunningScale:
    def __init__(self):
        self.n, self.mean, self.m2 = np.float64(0), np.float64(0), np.float64(0)

    def update(self, value):
        self.n += 1
        delta = value - self.mean
        self.mean += delta / self.n
        self.m2 += delta * (value - self.mean)

    def std(self):
        with np.errstate(all="ignore"):
            return np.sqrt(self.m2 / (self.n - 1)) + 1e-8


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 3))

    def forward(self, obs):
        return self.net(obs).log_softmax(-1)


def build():
    torch.manual_seed(42)
    model = Policy()
    scalers = {"reach": RunningScale(), "push": RunningScale()}
    for value in (0.4, 1.1, 0.2, 0.9):
        scalers["reach"].update(value)

    def loss_fn(model, batch):
        obs, act, rew = batch["obs"], batch["act"], batch["rew"]
        scale = scalers[batch["task"]]
        scale.update(float(rew.sum()))
        returns = rew.flip(0).cumsum(0).flip(0) / scale.std()
        logp = model(obs).gather(1, act[:, None]).squeeze(1)
        return -(logp * (returns - returns.mean())).mean()

    batches = [dict(task="push" if k == 2 else "reach", obs=torch.randn(12, 5), act=torch.randint(0, 3, (12,)), rew=torch.rand(12))
               for k in range(5)]
    truth = dict(
        cause="std_of_one_element", also=["division_by_zero"], first_bad_step=2, phase="forward", module="loss", op=None,
        also_op=["aten.div"], untraceable=True, line="return np.sqrt(self.m2 / (self.n - 1)) + 1e-8",
        why="the scaler of the task push has seen one return: NumPy computes 0 / 0 outside PyTorch, and the returns are divided by NaN",
        repair=("self.n - 1)", "max(self.n - 1, 1))"),
    )
    return dict(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3), batches=batches, loss_fn=loss_fn, steps=5,
                autocast_dtype=None, truth=truth)
