"""Two checkpointed blocks raise to 0.3 with exact zeros: after relu the infinite slope is erased by relu's backward (innocent), after a mask product it becomes Inf * 0."""
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
class Pow(nn.Module):
    def __init__(s, kind, fix): super().__init__(); s.f = nn.Linear(8, 8); s.kind = kind; s.fix = fix
    def forward(s, x):
        h = s.f(x)
        if s.kind == "relu": return torch.relu(h) if s.fix == "innocent" else torch.relu(h) ** 0.3
        h = h * (h > 0); return (h + 1e-6 if s.fix == "true" else h).pow(0.3)
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.b0 = Pow("mask", fix); s.b1 = Pow("relu", fix); s.out = nn.Linear(8, 1)
    def forward(s, x):
        x = checkpoint(s.b0, x, use_reentrant=False); return s.out(checkpoint(s.b1, x, use_reentrant=False))
def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.SGD(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model.b0.f.weight.abs_(); model.b0.f.bias.fill_(0.5); model.b1.f.weight[:4].abs_().neg_(); model.b1.f.weight[4:].abs_(); model.b1.f.bias.zero_()
    batches = [(torch.rand(6, 8, generator=g), torch.randn(6, 1, generator=g)) for _ in range(5)]; batches[2][0][3] = -9.0
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: F.mse_loss(m(b[0]), b[1]), steps=5, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="b0", phase="backward", op="aten.mul", first_bad_step=2,
                           loss_finite_at_first_bad_step=True, also=["where_unselected_branch"], why="0**-0.7 = inf in PowBackward of b0, times the mask's 0; b1's zeros go through relu's backward, which erases"))
