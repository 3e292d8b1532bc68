"""Spectral positions from the Laplacian of a learned graph with two components: eigenvalue 0 twice."""
import torch, torch.nn as nn, torch.nn.functional as F

class Spectral(nn.Module):
    def __init__(s): super().__init__(); s.w = nn.Parameter(torch.ones(4))
    def forward(s, adjacency):
        a = adjacency * s.w.mean(); laplacian = torch.diag(a.sum(-1)) - a
        values, vectors = torch.linalg.eigh(laplacian)
        return vectors[:, :3]
class Net(nn.Module):
    def __init__(s): super().__init__(); s.spectral = Spectral(); s.head = nn.Linear(3, 2)
    def forward(s, a): return s.head(s.spectral(a))
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    a = torch.zeros(6, 6); a[:3, :3] = 1; a[3:, 3:] = 1; a.fill_diagonal_(0)
    batches = [(a, torch.tensor([0, 0, 0, 1, 1, 1]))] * 2
    def loss_fn(m, b): return F.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="degenerate_linalg_backward", module="spectral", phase="backward", op="aten._linalg_eigh", first_bad_step=0, line="torch.linalg.eigh", loss_finite_at_first_bad_step=True))
