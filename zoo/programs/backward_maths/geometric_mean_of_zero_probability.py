"""Two views agree through (p1 * p2) ** 0.3 in a helper; one probability is exactly zero."""
import torch, torch.nn as nn, torch.nn.functional as F

class Heads(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Linear(5, 3); s.b = nn.Linear(5, 3)
    def forward(s, x): return torch.softmax(s.a(x), -1), torch.softmax(s.b(x), -1)
def agreement(p1, p2, beta):
    joint = (p1 * p2) ** beta
    return joint.sum(-1)
def build():
    torch.manual_seed(0); model = Heads(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(5, 5, generator=g) for _ in range(4)]; batches[3] = batches[3] * 300
    def loss_fn(m, x): return -agreement(*m(x), 0.3).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", where="loss_fn", module="", phase="backward", op="aten.pow", first_bad_step=3, line="joint = (p1 * p2) ** beta", loss_finite_at_first_bad_step=True))
