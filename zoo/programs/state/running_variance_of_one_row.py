"""An own batch normalisation keeps the unbiased variance as running statistic; the last batch has one row, and the buffer is NaN from then on.
After https://github.com/facebookresearch/SparseConvNet/issues/190 (a batch size of 1 produces nan in running_var).
True cause: a running statistic took the variance of one element."""
import torch
from torch import nn


class OwnNorm(nn.Module):
    def __init__(self, d, momentum=0.1):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(d))
        self.register_buffer("running_var", torch.ones(d))
        self.momentum = momentum

    def forward(self, x):
        mean, var = x.mean(0), x.var(0, unbiased=False)
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(x.var(0), self.momentum)
        return (x - mean) / torch.sqrt(var + 1e-5)


def build():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 6), OwnNorm(6), nn.Tanh(), nn.Linear(6, 1))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(4)
    batches = [torch.randn(n, 3, generator=g) for n in (8, 8, 8, 1)]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, x: m(x).square().mean(), steps=4, autocast_dtype=None,
                truth=dict(cause="bn_buffers_poisoned", also=("std_of_one_element",), module="1", phase="forward", op="aten.var", first_bad_step=3, loss_finite_at_first_bad_step=True, grads_finite=True, poisoned_state=["1.running_var"], line="self.running_var.lerp_("))
