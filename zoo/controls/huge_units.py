"""CONTROL: values huge for a good reason: targets in cents (1e9..1e12, loss 1e24 in float64), finfo.min masks in fp32, a clipping plane of 1e30, rows of physical constants 1e-30 and 1e20. Nothing overflows."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s):
        super().__init__(); s.f = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 1)); s.att = nn.Linear(6, 1); s.register_buffer("const", torch.tensor([6.6e-34, 1.4e-23, 6.0e23, 3e8]))
    def forward(s, x, pad):
        a = s.att(x).squeeze(-1).masked_fill(pad, torch.finfo(x.dtype).min).softmax(-1)
        depth = torch.where(pad, torch.full_like(a, 1e30), a); near = depth.min(-1).values
        return s.f((a[..., None] * x).sum(1)).squeeze(-1) + 0.1 * near + s.const[0] * s.const[2]
def build(fix=None):
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1); batches = []
    for k in range(10):
        pad = torch.rand(8, 5, generator=g) < 0.3; pad[:, 0] = False; batches.append((torch.randn(8, 5, 6, generator=g), pad, 1e9 * torch.exp(3 * torch.rand(8, generator=g))))
    def loss_fn(m, b): return (m(b[0], b[1]).double() * 1e9 - b[2].double()).pow(2).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=10, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
