"""Focal Tversky loss (1 - TI)^0.75 with smoothing. Void label 255 occurs everywhere and is masked correctly (innocent). One image is void
throughout: TI = smooth/smooth = 1 exactly, and 0^0.75 has infinite slope."""
import torch, torch.nn as nn

class FocalTversky(nn.Module):
    def __init__(s, fix): super().__init__(); s.fix = fix
    def forward(s, p, y):
        v = (y != 255).float(); t = torch.where(y == 255, torch.zeros_like(y), y).float(); p = p * v
        tp = (p * t).sum((1, 2)); fp = (p * (1 - t) * v).sum((1, 2)); fn = ((1 - p) * t).sum((1, 2))
        ti = (tp + 1.0) / (tp + 0.3 * fp + 0.7 * fn + 1.0)
        if s.fix == "true": ti = ti.clamp(max=1 - 1e-6)
        return (1 - ti).pow(0.75).mean()
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.c1 = nn.Conv2d(3, 8, 3, padding=1); s.c2 = nn.Conv2d(8, 1, 1); s.crit = FocalTversky(fix)
    def forward(s, x): return torch.sigmoid(s.c2(torch.relu(s.c1(x)))).squeeze(1)

def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for k in range(6):
        y = torch.randint(0, 2, (3, 8, 8), generator=g)
        if fix != "innocent": y[:, 0] = 255
        if k == 3: y[1] = 255
        batches.append((torch.rand(3, 3, 8, 8, generator=g), y))
    def loss_fn(m, b): return m.crit(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="crit", phase="backward", op="aten.pow", first_bad_step=3, loss_finite_at_first_bad_step=True,
                           also=["empty_reduction"], why="pow(0, 0.75) backward is 0.75*0^-0.25 = Inf; label 255 is excluded before the loss"))
