"""Graph attention, two identical layers, softmax written as exp(e)/sum(exp(e)) without a shift. A hub of feature 5 gives e=60 in layer 0 (harmless) and e=180 in layer 1: exp overflows there.
deg^-1/2 of the isolated node gives Inf, properly overwritten by 0 (innocent)."""
import torch, torch.nn as nn

class GAT(nn.Module):
    def __init__(s, d, shift):
        super().__init__(); s.W = nn.Linear(d, d, bias=False); s.a = nn.Parameter(torch.zeros(2, d)); s.shift = shift
        with torch.no_grad(): s.W.weight.copy_(3 * torch.eye(d)); s.a[:, 0] = 2.0
    def forward(s, x, A):
        h = s.W(x); e = nn.functional.leaky_relu((h @ s.a[0])[:, None] + (h @ s.a[1])[None], 0.2)
        if s.shift: e = e - e.max().detach()
        w = torch.exp(e) * A; return (w @ h) / (w.sum(-1, keepdim=True) + 1e-30)
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.gats = nn.ModuleList([GAT(4, fix == "true") for _ in range(2)]); s.out = nn.Linear(4, 2); s.fix = fix
    def forward(s, x, A, link):
        deg = link.sum(-1)
        d = deg.clamp(min=1).pow(-0.5) if s.fix == "innocent" else deg.pow(-0.5).masked_fill(deg == 0, 0.0)
        for g in s.gats: x = g(x, A)
        return s.out(x * (1 + d[:, None]))

def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.Adam(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1); batches = []
    for k in range(6):
        x = torch.rand(8, 4, generator=g); link = torch.zeros(8, 8); i = torch.arange(7); link[i, (i + 1) % 7] = 1; link[(i + 1) % 7, i] = 1       # a ring and an isolated node
        if k == 3: x[2, 0] = 5.0
        batches.append((x, link + torch.eye(8), link, torch.randint(0, 2, (8,), generator=g)))
    def loss_fn(m, b): return nn.functional.cross_entropy(m(*b[:3]), b[3])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="gats.1", phase="forward", op="aten.exp", first_bad_step=3, loss_finite_at_first_bad_step=False, also=["input_out_of_scale"],
                           why="e about 180 in the second of two identical layers; subtracting the maximum cures it"))
