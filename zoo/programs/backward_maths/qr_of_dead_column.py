"""An orthogonal layer takes Q of a QR decomposition of gated features. Once a gate is exactly 0 the matrix has a zero column: R has a zero on its diagonal.
True cause: degenerate QR in backward (it solves with R); the forward is finite, and a little noise on the matrix cures it."""
import torch, torch.nn as nn

class Ortho(nn.Module):
    def forward(s, a): return torch.linalg.qr(a)[0]
class Net(nn.Module):
    def __init__(s): super().__init__(); s.lift = nn.Linear(5, 3); s.ortho = Ortho(); s.out = nn.Linear(3, 1)
    def forward(s, x, gate): return s.out(s.ortho(s.lift(x) * gate))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adamax(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [dict(x=torch.randn(8, 5, generator=g), gate=torch.ones(3), y=torch.randn(8, 1, generator=g)) for _ in range(4)]
    batches[2]["gate"][1] = 0.0
    def loss_fn(m, b): return nn.functional.mse_loss(m(b["x"], b["gate"]), b["y"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="degenerate_linalg_backward", module="ortho", phase="backward", op="aten.linalg_solve_triangular", first_bad_step=2,
                           loss_finite_at_first_bad_step=True))
