"""fp16 autocast with a static loss scale of 32768 chosen on full batches: the last, smaller batch (drop_last=False) has a larger
gradient per sample, and the scaled weight gradient overflows fp16. True cause: static loss scale; with scale 1 all is finite."""
import torch, torch.nn as nn

SCALE = 2.0 ** 15
class Cls(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Sequential(nn.Linear(12, 24), nn.ReLU()); s.head = nn.Linear(24, 5)
    def forward(s, x): return s.head(s.body(x))

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Cls(); opt = torch.optim.SGD(model.parameters(), lr=0.01)
    with torch.no_grad(): model.body[0].weight.mul_(4)
    def unscale(o, *a):
        for grp in o.param_groups:
            for p in grp["params"]:
                if p.grad is not None: p.grad.div_(SCALE)
    opt.register_step_pre_hook(unscale)
    g = torch.Generator().manual_seed(1); sizes = [32] * 6 + [1] + [32] * 2
    batches = [(torch.randn(n, 12, generator=g), torch.randint(0, 5, (n,), generator=g)) for n in sizes]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]).float(), b[1]) * SCALE
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=torch.float16,
                truth=dict(cause="loss_scale_misuse", module="head", phase="backward", op="aten.mm", first_bad_step=6, loss_finite_at_first_bad_step=True))
