"""A Glow-like flow whose ActNorm layers initialise themselves on the first batch they see. The second level is switched on after three
steps (progressive growing), and in that batch channel 2 is constant: the mask channel is all ones. Its deviation is zero, log(1 / 0) is
Inf, and Inf is written into the parameter. The true cause is the division by a deviation of zero."""
import math
import torch
from torch import nn


class ActNorm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.log_scale, self.shift = nn.Parameter(torch.zeros(c)), nn.Parameter(torch.zeros(c))
        self.register_buffer("ready", torch.tensor(False))

    @torch.no_grad()
    def initialise(self, x):
        self.shift.copy_(-x.mean(0))
        self.log_scale.copy_(torch.log(1 / x.std(0)))
        self.ready.fill_(True)

    def forward(self, x):
        if not self.ready:
            self.initialise(x)
        return (x + self.shift) * self.log_scale.exp(), self.log_scale.sum()


class Flow(nn.Module):
    def __init__(self, c=4):
        super().__init__()
        self.norms = nn.ModuleList([ActNorm(c), ActNorm(c)])
        self.coupling = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, x, levels):
        logdet = 0.0
        for norm in self.norms[:levels]:
            x, ld = norm(x)
            logdet = logdet + ld
        log_s, t = self.coupling(x[:, :2]).chunk(2, 1)
        log_s = torch.tanh(log_s)
        z = torch.cat([x[:, :2], x[:, 2:] * log_s.exp() + t], 1)
        return z, logdet + log_s.sum(1)


def loss_fn(model, batch):
    z, logdet = model(*batch)
    return (0.5 * z.pow(2).sum(1) + 0.5 * z.shape[1] * math.log(2 * math.pi) - logdet).mean()


def build():
    torch.manual_seed(43)
    model = Flow()
    batches = [(torch.randn(32, 4) * 2 + 1, 1) for _ in range(3)] + [(torch.randn(32, 4) * 2 + 1, 2) for _ in range(3)]
    batches[3][0][:, 2] = 1.0
    truth = dict(
        cause="division_by_zero", also=["state_overwritten"], first_bad_step=3, phase="forward", module="norms.1", op="aten.reciprocal",
        also_op=["aten.log", "aten.copy_", "aten.div"], line="self.log_scale.copy_(torch.log(1 / x.std(0)))", param="norms.1.log_scale",
        why="a constant channel has a deviation of zero; the data-dependent initialisation divides by it and stores Inf",
        repair=("1 / x.std(0)", "1 / (x.std(0) + 1e-3)"), poisoned_state=["norms.1.log_scale"],
    )
    return dict(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3), batches=batches, loss_fn=loss_fn, steps=6,
                autocast_dtype=None, truth=truth)
