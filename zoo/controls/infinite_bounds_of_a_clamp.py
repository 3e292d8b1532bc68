"""Bounds of parameters are ±inf where there is none, and a running minimum and maximum start at ±inf in buffers that are always updated before use. Healthy."""
import torch
from torch import nn


class Observer(nn.Module):
    def forward(self, x, lo, hi):
        lo, hi = torch.minimum(lo, x.detach().amin(0)), torch.maximum(hi, x.detach().amax(0))
        return (x - lo) / (hi - lo + 1e-6), lo, hi


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.obs, self.out = nn.Linear(3, 5), Observer(), nn.Linear(5, 1)

    def forward(self, x):
        inf = float("inf")
        h, _, _ = self.obs(self.fc(x), torch.full((5,), inf), torch.full((5,), -inf))
        return self.out(h).clamp(-inf, inf)


def build():
    torch.manual_seed(8)
    net = nn.ModuleDict({"n": Net()})
    g = torch.Generator().manual_seed(9)
    bs = [(x, x.prod(1, keepdim=True)) for x in torch.randn(4, 12, 3, generator=g)]
    return dict(model=net, optimizer=torch.optim.Adam(net.parameters(), lr=1e-2), batches=bs, steps=12, autocast_dtype=None,
                loss_fn=lambda m, b: nn.functional.mse_loss(m["n"](b[0]), b[1]), truth=dict(cause="benign", first_bad_step=None))
