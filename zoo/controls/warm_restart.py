"""CONTROL: warm restarts: the rate goes 1e-3 -> 1e-1 (a hundredfold jump) at step 5 and back, by design; the loss rises a little and everything stays finite."""
import torch, torch.nn as nn
def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1)); opt = torch.optim.Adam(model.parameters(), lr=1e-4); k = [0]
    def sched(o, *a):
        k[0] += 1
        for gr in o.param_groups: gr["lr"] = 1e-1 if 5 <= k[0] < 8 else 1e-3
    opt.register_step_post_hook(sched); g = torch.Generator().manual_seed(1); bs = [(torch.randn(16, 8, generator=g), torch.randn(16, 1, generator=g)) for _ in range(20)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=20, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None, why="A planned restart of the rate."))
