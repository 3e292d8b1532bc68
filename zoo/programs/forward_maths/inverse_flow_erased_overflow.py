"""A flow for positive data with a Gamma base: z = x / exp(s(c)), log p = (k-1) log z - z - s. For one context of batch 3 s is 95 (finite):
exp(95) is Inf, x / Inf is exactly 0, log(0) is -Inf. In between everything looks finite again.
True cause: exp overflows. TRAP: the logarithm of zero is where it reappears; x and c are ordinary numbers (c is 9.5)."""
import torch
import torch.nn as nn


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(3, 1)

    def forward(self, c):
        return self.net(c).squeeze(-1)


class InverseScale(nn.Module):
    def forward(self, x, s):
        return x / torch.exp(s)


class GammaFlow(nn.Module):
    def __init__(self):
        super().__init__()
        self.s, self.inverse = Scale(), InverseScale()
        self.shape = nn.Parameter(torch.tensor(2.0))
        with torch.no_grad():
            self.s.net.weight.copy_(torch.tensor([[10.0, 0.1, -0.2]]))
            self.s.net.bias.zero_()

    def forward(self, x, c):
        s = self.s(c)
        z = self.inverse(x, s)
        return (self.shape - 1) * torch.log(z) - z - torch.lgamma(self.shape) - s


def build():
    torch.manual_seed(0)
    model = GammaFlow()
    opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(5):
        c = torch.rand(8, 3, generator=g) * 2 - 1
        if i == 3:
            c[4, 0] = 9.5
        batches.append((torch.rand(8, generator=g) + 0.5, c))

    def loss_fn(m, b):
        return -m(*b).mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="inverse", phase="forward", op="aten.exp", first_bad_step=3, trap=True))
