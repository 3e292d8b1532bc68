"""A half-precision linear probe; a step hook rescales each gradient to length log(1+norm): g / n * log1p(n). Batch 3 is 16 times larger and the loss is a sum.
True cause: every gradient element is finite (about 8000), but the fp16 norm overflows to inf: 0 * inf = NaN weights."""
import torch, torch.nn as nn

class Probe(nn.Module):
    def __init__(s): super().__init__(); s.norm = nn.Identity(); s.fc = nn.Linear(64, 64, bias=False); nn.init.zeros_(s.fc.weight)
    def forward(s, x): return s.fc(s.norm(x))

def log_rescale(opt, *a):
    for grp in opt.param_groups:
        for p in grp["params"]:
            n = torch.linalg.vector_norm(p.grad)
            p.grad = p.grad / n * torch.log1p(n)

def build():
    torch.manual_seed(0); model = Probe().half(); opt = torch.optim.SGD(model.parameters(), lr=1e-3); opt.register_step_pre_hook(log_rescale)
    g = torch.Generator().manual_seed(1)
    batches = [((7 + 2 * torch.rand(n, 64, generator=g)).half(), 4 + 0.1 * torch.randn(n, 64, generator=g)) for n in (8, 8, 8, 128, 8)]
    def loss_fn(m, b): return ((m(b[0]).float() - b[1]) ** 2).sum()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="grad_norm_overflow", also=["zero_times_inf"], module="optimizer", phase="grad_clip", also_phase=["optimizer"], op="aten.linalg_vector_norm", first_bad_step=3, loss_finite_at_first_bad_step=True))
