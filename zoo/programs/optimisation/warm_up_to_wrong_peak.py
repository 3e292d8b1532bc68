"""An autoencoder with tied weights under a linear warm-up, LinearLR from 0.01 to 2.5; the peak should have been 0.25. All is well until the rate passes the stability limit.
True cause: the rate; a tenth of it learns the same batches to the end of the warm-up."""
import torch, torch.nn as nn

class Tied(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(10, 6); s.bias = nn.Parameter(torch.zeros(10))
    def forward(s, x): return nn.functional.linear(nn.functional.leaky_relu(s.enc(x)), s.enc.weight.T, s.bias)

def build():
    torch.manual_seed(0); model = Tied(); opt = torch.optim.SGD(model.parameters(), lr=2.5)
    sched = torch.optim.lr_scheduler.LinearLR(opt, start_factor=0.005, total_iters=12); opt.register_step_post_hook(lambda o, *a: sched.step())
    g = torch.Generator().manual_seed(1); basis = torch.randn(4, 10, generator=g); batches = [torch.randn(16, 4, generator=g) @ basis * 0.6 for _ in range(14)]
    def loss_fn(m, x): return (m(x) - x).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=14, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="loss", phase="forward", op="aten.pow", first_bad_step=12))
