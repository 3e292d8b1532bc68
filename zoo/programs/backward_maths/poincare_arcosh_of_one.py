"""Hyperbolic embeddings with the usual hand-written Arcosh autograd.Function: its backward divides by sqrt(x^2 - 1). A pair of one item
with itself has distance 0, x is exactly 1. The embeddings near the boundary (norm 0.99999, projected legally every step) are innocent."""
import torch, torch.nn as nn

class Arcosh(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, eps):
        z = torch.sqrt(x * x - 1); ctx.save_for_backward(z); ctx.eps = eps; return torch.log(x + z)
    @staticmethod
    def backward(ctx, g):
        z, = ctx.saved_tensors; return g / (z + ctx.eps), None
class Dist(nn.Module):
    def __init__(s, fix): super().__init__(); s.fix = fix
    def forward(s, u, v):
        a = 1 - (u * u).sum(-1); b = 1 - (v * v).sum(-1)
        return Arcosh.apply((1 + 2 * ((u - v) ** 2).sum(-1) / (a * b)).clamp(min=1.0), 1e-5 if s.fix == "true" else 0.0)
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.emb = nn.Embedding(20, 4); s.dist = Dist(fix)
    def forward(s, i, j): return s.dist(s.emb(i), s.emb(j))

def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.SGD(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    with torch.no_grad():
        w = model.emb.weight; w.mul_(0.1)
        if fix != "innocent": w[0] = torch.tensor([0.999, 0, 0, 0.0])    # a deep leaf, near the boundary
    def project(o, *a):
        with torch.no_grad():
            w = model.emb.weight; n = w.norm(dim=-1, keepdim=True); w.copy_(torch.where(n > 0.999, w / n * 0.999, w))
    opt.register_step_post_hook(project)
    for k in range(6):
        i = torch.randint(0, 10, (8,), generator=g); j = torch.randint(10, 20, (8,), generator=g)
        if k == 3: j[6] = i[6]                                        # a self-loop in the taxonomy
        batches.append((i, j))
    def loss_fn(m, b): return (m(*b) - 1.0).pow(2).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="dist", phase="backward", op="aten.div", first_bad_step=3, loss_finite_at_first_bad_step=True,
                           also=["arccos_boundary", "division_by_zero"], why="own Function's backward divides by sqrt(1-1)=0 for a pair (i,i)"))
