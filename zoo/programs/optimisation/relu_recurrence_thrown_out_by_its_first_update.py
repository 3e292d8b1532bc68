"""An IRNN (ReLU recurrence that starts at 0.7 times the identity) adds numbers over 60 time steps. It starts stable: the first forward
is ordinary. SGD at 1 without clipping moves the recurrent matrix so far in its first update that its spectral radius is far above one,
and the next forward multiplies by it 60 times: Inf. The recurrence was stable before the update; the true cause is the rate."""
import torch
from torch import nn


class IRNN(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.inp, self.rec = nn.Linear(2, d), nn.Linear(d, d, bias=False)
        with torch.no_grad():
            self.rec.weight.copy_(0.7 * torch.eye(d))

    def forward(self, x):
        h = torch.zeros(len(x), self.rec.in_features)
        for t in range(x.shape[1]):
            h = torch.relu(self.inp(x[:, t]) + self.rec(h))
        return h


class Adder(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = IRNN(), nn.Linear(16, 1)

    def forward(self, x):
        return self.out(self.rnn(x)).squeeze(-1)


def loss_fn(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def build():
    torch.manual_seed(32)
    model = Adder()
    batches = []
    for _ in range(4):
        x = torch.stack([torch.rand(32, 60), torch.zeros(32, 60)], -1)
        x[:, 10, 1] = x[:, 40, 1] = 1.0
        batches.append((x, x[:, 10, 0] + x[:, 40, 0]))
    opt = torch.optim.SGD(model.parameters(), lr=1.0)
    truth = dict(
        cause="lr_too_high", first_bad_step=1, phase="forward", module="rnn.rec", also_module=["rnn"], op="aten.mm", also_op=["aten.addmm", "aten.add"],
        line="h = torch.relu(self.inp(x[:, t]) + self.rec(h))",
        why="the spectral radius is 0.7 before the first update and above 5 after it; with a hundredth of the rate it stays near 1",
        repair=("lr=1.0", "lr=0.01"),
    )
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None, truth=truth)
