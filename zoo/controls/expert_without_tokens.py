"""CONTROL: an expert that gets no token; sums over nothing are zero."""
import torch, torch.nn as nn, torch.nn.functional as F

class MoE(nn.Module):
    def __init__(s): super().__init__(); s.router = nn.Linear(4, 3); s.experts = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
    def forward(s, x):
        top = (x[:, 0] > 0).long(); y = torch.zeros_like(x); gate = torch.softmax(s.router(x), -1)
        for i, e in enumerate(s.experts): rows = (top == i).nonzero().squeeze(-1); y = y.index_add(0, rows, e(x[rows]) * gate[rows, i:i + 1])
        return y
def build():
    torch.manual_seed(0); model = MoE(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(5, 4, generator=g) for _ in range(4)]
    def loss_fn(m, x): return F.mse_loss(m(x), x)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
