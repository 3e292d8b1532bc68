"""CONTROL: max over time with -inf at the padding."""
import torch, torch.nn as nn, torch.nn.functional as F

class P(nn.Module):
    def __init__(s): super().__init__(); s.lin = nn.Linear(4, 4)
    def forward(s, x, keep): return s.lin(x).masked_fill(~keep[..., None], float("-inf")).max(1).values
def build():
    torch.manual_seed(0); model = P(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(3, 5, 4, generator=g), torch.arange(5)[None] < torch.tensor([[5], [2], [1]])) for _ in range(4)]
    def loss_fn(m, b): return m(*b).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
