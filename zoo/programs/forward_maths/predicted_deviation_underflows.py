"""A probabilistic forecaster divides by softplus of its output; for a very certain grid point softplus(-120) is exactly 0.
After https://github.com/mllam/neural-lam/pull/537 (softplus can produce zero, division by zero and NaN losses).
True cause: division by zero."""
import torch
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.raw_std = nn.Linear(4, 1), nn.Linear(4, 1)
        with torch.no_grad():
            self.raw_std.weight.fill_(-10.0)

    def forward(self, x):
        return self.mean(x), nn.functional.softplus(self.raw_std(x))


def nll(mean, std, y):
    return (0.5 * ((y - mean) / std) ** 2 + torch.log(std)).mean()


def build():
    torch.manual_seed(3)
    model = nn.ModuleDict({"head": Head()})
    opt = torch.optim.SGD(model.parameters(), lr=1e-9)
    g = torch.Generator().manual_seed(4)
    xs = [torch.rand(4, 4, generator=g) * 0.4 for _ in range(4)]
    xs[2][1] = 3.0
    batches = [(x, torch.rand(4, 1, generator=g)) for x in xs]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: nll(*m["head"](b[0]), b[1]), steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", also=("log_of_zero", "input_out_of_scale"), module="loss", phase="forward", op="aten.div", also_op=("aten.log",), first_bad_step=2, line="((y - mean) / std) ** 2", sample=1))
