"""fp16 autocast with a static loss scale of 2**30 of the program's own and unscaling in a step hook. exp in the head (bounded by tanh) is innocent."""
import torch, torch.nn as nn, torch.nn.functional as F
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.a = nn.Linear(8, 16); s.b = nn.Linear(16, 1); s.fix = fix
    def forward(s, x): h = torch.tanh(s.a(x)); return s.b(h if s.fix == "innocent" else h * torch.exp(-h))
def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.Adam(model.parameters(), lr=1e-3); S = {"scale": 2.0 ** 7 if fix == "true" else 2.0 ** 30}
    def unscale(o, *a):
        for gr in o.param_groups:
            for p in gr["params"]: p.grad.div_(S["scale"])
    opt.register_step_pre_hook(unscale)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(16, 8, generator=g), torch.randn(16, 1, generator=g)) for _ in range(4)]
    def loss_fn(m, b): return F.mse_loss(m(b[0]).float(), b[1]) * S["scale"]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=torch.float16,
                truth=dict(cause="loss_scale_misuse", module="b", phase="backward", op="aten._to_copy", first_bad_step=0,
                           loss_finite_at_first_bad_step=True, also=[], why="scaled gradients of about 1e8 do not fit fp16; finite with scale 1"))
