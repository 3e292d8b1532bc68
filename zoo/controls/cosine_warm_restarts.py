"""CONTROL: cosine annealing with warm restarts: every fourth step the rate jumps up sevenfold and the loss may rise for a while. That is the method, and it
stays stable."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(6, 16), nn.ELU(), nn.Linear(16, 2)); opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.8, nesterov=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=4, eta_min=1e-4); opt.register_step_post_hook(lambda o, *a: sched.step())
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(12, 6, generator=g), torch.randn(12, 2, generator=g)) for _ in range(14)]
    def loss_fn(m, b): return nn.functional.smooth_l1_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=14, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
