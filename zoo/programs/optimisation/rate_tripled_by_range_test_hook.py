"""A learning-rate range test left switched on: a hook of the optimizer triples the rate after every step. Training is fine
until the rate passes the stability limit, then every step multiplies the weights.
True cause: the rate (0.015 at the start, hundreds at the end)."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Linear(24, 12))
    opt = torch.optim.SGD(model.parameters(), lr=0.015)
    def triple(o, *a):
        for group in o.param_groups: group["lr"] *= 3.0
    opt.register_step_post_hook(triple)
    g = torch.Generator().manual_seed(1); batches = [torch.randn(32, 12, generator=g) for _ in range(16)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b), b)                  # an autoencoder
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=12, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="loss", phase="forward", op="aten.mse_loss", first_bad_step=10))
