"""A linear state-space cell with spectral radius 6; sequences of 8 frames are fine, batch 3 has 80 frames. The softplus output map is innocent."""
import torch, torch.nn as nn, torch.nn.functional as F
class Cell(nn.Module):
    def __init__(s, r): super().__init__(); s.A = nn.Parameter(r * torch.eye(5)); s.B = nn.Linear(3, 5)
    def forward(s, h, x): return torch.einsum("ij,bj->bi", s.A, h) + s.B(x)
class SSM(nn.Module):
    def __init__(s, fix): super().__init__(); s.cell = Cell(0.6 if fix == "true" else 6.0); s.out = nn.Linear(5, 1); s.fix = fix
    def forward(s, x):
        h = torch.zeros(x.shape[0], 5)
        for t in range(x.shape[1]): h = s.cell(h, x[:, t])
        y = s.out(h); return y if s.fix == "innocent" else F.softplus(y)
def build(fix=None):
    torch.manual_seed(0); model = SSM(fix); opt = torch.optim.SGD(model.parameters(), lr=1e-16); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, 80 if i == 3 else 8, 3, generator=g), torch.randn(4, 1, generator=g)) for i in range(5)]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: F.smooth_l1_loss(m(b[0]), b[1]), steps=5, autocast_dtype=None,
                truth=dict(cause="exploding_recurrence", module="cell", phase="forward", op="aten.mm", first_bad_step=3,
                           loss_finite_at_first_bad_step=False, also=["bad_initialisation"], why="6**80 = 1e62"))
