"""A factorisation machine whose interaction term is compiled. One numeric feature of batch 3 holds the sentinel 1e25 instead of a price of
about 1: the square of the sum and the sum of the squares are both Inf, and their difference is NaN.
True cause: a value far outside the scale of the batches before it; it is finite, and nothing is wrong with the compiled code."""
import torch
import torch.nn as nn
import torch.nn.functional as F


@torch.compile(backend="eager")
def pairwise(e):
    return 0.5 * (e.sum(1).pow(2) - e.pow(2).sum(1)).sum(-1)


class Interaction(nn.Module):
    def __init__(self, fields, d):
        super().__init__()
        self.v = nn.Parameter(torch.randn(fields, d) * 0.1)

    def forward(self, x):
        return pairwise(x[..., None] * self.v)


class Fm(nn.Module):
    def __init__(self, fields=6, d=4):
        super().__init__()
        self.linear, self.interaction = nn.Linear(fields, 1), Interaction(fields, d)

    def forward(self, x):
        return self.linear(x).squeeze(-1) + self.interaction(x)


def build():
    torch.manual_seed(0)
    model = Fm()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(5):
        x = torch.rand(10, 6, generator=g) + 0.5
        if i == 3:
            x[7, 2] = 1e25
        batches.append({"features": x, "click": torch.randint(0, 2, (10,), generator=g).float()})

    def loss_fn(m, b):
        return F.binary_cross_entropy_with_logits(m(b["features"]), b["click"])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="input_out_of_scale", module="interaction", phase="forward", op="aten.pow", first_bad_step=3,
                           also_phase=["data"], also=["bad_input_data"]))
