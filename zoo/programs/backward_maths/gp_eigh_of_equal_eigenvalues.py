"""Gaussian process through an eigendecomposition: points so far apart that the kernel is exactly diagonal with equal entries (repeated
eigenvalues): the backward of eigh divides by 0. The tiny noise 1e-6 and the duplicated TARGETS are innocent."""
import torch, torch.nn as nn

class GP(nn.Module):
    def __init__(s, fix):
        super().__init__(); s.feat = nn.Linear(2, 2); s.log_ls = nn.Parameter(torch.zeros(())); s.noise = 1e-2 if fix == "innocent" else 1e-6; s.fix = fix
    def forward(s, x, y):
        f = s.feat(x); d = ((f[:, None] - f[None]) ** 2).sum(-1)
        K = torch.exp(-0.5 * d / s.log_ls.exp() ** 2)
        K = K + s.noise * torch.eye(len(x))
        if s.fix == "true": K = K + torch.diag(torch.linspace(0.01, 0.05, len(x)))
        lam, V = torch.linalg.eigh(K)
        a = V.T @ y
        return 0.5 * (a * a / lam.clamp(min=1e-6)).mean() + 0.5 * lam.clamp(min=1e-6).log().mean()
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.gp = GP(fix)
    def forward(s, x, y): return s.gp(x, y)

def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.Adam(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1); batches = []
    with torch.no_grad(): model.gp.feat.weight.copy_(torch.eye(2))
    for k in range(6):
        x = torch.stack([torch.arange(5) * 1.3 + 0.3 * torch.rand(5, generator=g), torch.rand(5, generator=g)], -1); y = torch.randn(5, generator=g); y[1] = y[0]
        if k == 3: x = x * 1000.0                                     # metres instead of kilometres: K is the identity
        batches.append((x, y))
    def loss_fn(m, b): return m(*b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="degenerate_linalg_backward", module="gp", phase="backward", op="aten.div_", first_bad_step=3, loss_finite_at_first_bad_step=True,
                           also=["input_out_of_scale"], why="five equal eigenvalues: 1/(l_i-l_j) in eigh's backward"))
