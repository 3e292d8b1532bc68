"""A gradient scaler on float16 gradients: one step overflows, is found, skipped and the scale is halved, as designed. The overflow never reaches the weights.
Healthy: this is how dynamic scaling works (the gradients that the loop sees are already cleaned)."""
import torch
from torch import nn


def build():
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    opt, scale = torch.optim.SGD(net.parameters(), lr=1e-2), [2.0 ** 14]
    g = torch.Generator().manual_seed(5)
    bs = [(x, x[:, :1] * k) for x, k in zip(torch.randn(6, 8, 4, generator=g), (1, 1, 30, 1, 1, 1))]

    def loss_fn(m, b):
        loss = nn.functional.mse_loss(m(b[0]), b[1])
        half = torch.autograd.grad(loss * scale[0], list(m.parameters()), retain_graph=True)
        if not all(torch.isfinite(h.half()).all() for h in half):
            scale[0] /= 2
            return loss * 0.0                                  # the step is skipped
        return loss

    return dict(model=net, optimizer=opt, batches=bs, steps=8, autocast_dtype=None, loss_fn=loss_fn, truth=dict(cause="benign", first_bad_step=None))
