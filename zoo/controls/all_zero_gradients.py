"""CONTROL: a batch without any sample of the trained task gives a loss of exactly 0 and zero gradients; clipping divides by norm + 1e-6, and Adam's
first steps see zeros only."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    def clip(o, *a): nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.register_step_pre_hook(clip); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 4, generator=g), torch.randn(6, 1, generator=g), (torch.rand(6, 1, generator=g) < (0.5 if i > 1 else 0.0)).float()) for i in range(6)]
    def loss_fn(m, b): return ((m(b[0]) - b[1]).square() * b[2]).sum() / b[2].sum().clamp_min(1.0)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
