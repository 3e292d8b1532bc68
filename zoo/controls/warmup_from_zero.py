"""CONTROL: linear warm-up from lr = 0 (the first updates are exactly zero), a frozen encoder and a zero-initialised (ReZero/ControlNet) gate through which no gradient passes in the first steps. It does learn afterwards."""
import torch, torch.nn as nn
class Rez(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(6, 8).requires_grad_(False); s.body = nn.Linear(8, 8); s.gate = nn.Parameter(torch.zeros(())); s.out = nn.Linear(8, 1)
    def forward(s, x): h = s.enc(x); return s.out(h + s.gate * s.body(h).relu())
def build():
    torch.manual_seed(0); model = Rez(); opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.0); k = [0]
    def warm(o, *a): k[0] += 1; o.param_groups[0]["lr"] = 0.05 * min(1.0, max(0, k[0] - 1) / 4)
    opt.register_step_post_hook(warm); g = torch.Generator().manual_seed(1); bs = [(x := torch.randn(16, 6, generator=g), x[:, :1] * 2) for _ in range(14)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=14, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None, why="Zero updates are the warm-up's first steps only."))
