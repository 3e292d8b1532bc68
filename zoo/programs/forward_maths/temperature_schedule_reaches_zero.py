"""A Gumbel-softmax temperature is lowered by a quarter per epoch and reaches exactly 0; logits / 0 is infinite, and the softmax of infinities is NaN.
Written for this.
True cause: division by zero."""
import torch
import torch.nn as nn


class Selector(nn.Module):
    def __init__(self, n=6, k=3):
        super().__init__()
        self.logits = nn.Parameter(torch.randn(k, n))

    def forward(self, x, noise, tau):
        choice = torch.softmax((self.logits + noise) / tau, dim=-1)
        return x @ choice.T


def anneal(epoch, start=1.0, rate=0.25):
    return start - rate * epoch


def build():
    torch.manual_seed(4)
    model = nn.ModuleDict({"select": Selector(), "head": nn.Linear(3, 1)})
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(5)
    epochs = [(e, torch.randn(10, 6, generator=g), -torch.log(-torch.log(torch.rand(3, 6, generator=g) * 0.98 + 0.01))) for e in range(6)]

    def loss_fn(m, b):
        epoch, x, noise = b
        out = m["head"](m["select"](x, noise, torch.tensor(anneal(epoch))))
        return (out.squeeze(1) - x[:, 0]).square().mean()

    return dict(model=model, optimizer=opt, batches=epochs, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="select", phase="forward", op="aten.div", first_bad_step=4, line="choice = torch.softmax("))
