"""CONTROL: log guarded on both sides."""
import torch, torch.nn as nn, torch.nn.functional as F

class L(nn.Module):
    def __init__(s): super().__init__(); s.lin = nn.Linear(4, 4)
    def forward(s, x): r = F.relu(s.lin(x)); safe = torch.where(r > 0, r, torch.ones_like(r)); return torch.where(r > 0, safe.log(), torch.zeros_like(r))
def build():
    torch.manual_seed(0); model = L(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(5, 4, generator=g) for _ in range(4)]
    def loss_fn(m, x): return m(x).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
