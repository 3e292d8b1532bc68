"""Orthogonal Procrustes by SVD: the polar factor U V^T of a 3x3 estimate. The network starts at the identity, whose singular values
are all 1, and the derivative of the singular vectors divides by their differences.
True cause: degenerate SVD in backward."""
import torch, torch.nn as nn

class Procrustes(nn.Module):
    def forward(s, m): u, _, vh = torch.linalg.svd(m); return u @ vh
class Pose(nn.Module):
    def __init__(s):
        super().__init__(); s.net = nn.Linear(5, 9); s.ortho = Procrustes()
        nn.init.zeros_(s.net.weight); nn.init.zeros_(s.net.bias)
    def forward(s, x): return s.ortho(torch.eye(3) + s.net(x).view(-1, 3, 3))

def build():
    torch.manual_seed(0); model = Pose(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, 5, generator=g), torch.randn(4, 3, 3, generator=g)) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="degenerate_linalg_backward", module="ortho", phase="backward", op="aten.div", first_bad_step=0,
                           loss_finite_at_first_bad_step=True))
