"""CONTROL: an infinite slope that ReLU's backward erases."""
import torch, torch.nn as nn, torch.nn.functional as F

class R(nn.Module):
    def __init__(s): super().__init__(); s.lin = nn.Linear(4, 4)
    def forward(s, x): return torch.sqrt(F.relu(s.lin(x)) + 0.0)
def build():
    torch.manual_seed(0); model = R(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(5, 4, generator=g) for _ in range(3)]
    def loss_fn(m, x): return m(x).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
