"""CONTROL: norms, complex abs, prod, cumprod and cdist at exact zeros, all of which have a defined gradient in torch."""
import torch, torch.nn as nn, torch.nn.functional as F
class Net(nn.Module):
    def __init__(s): super().__init__(); s.f = nn.Linear(4, 4, bias=False)
    def forward(s, x):
        h = s.f(x); z = torch.complex(h, torch.zeros_like(h))
        return (h.norm(dim=1) + z.abs().sum(1) + torch.linalg.vector_norm(h, dim=1) + h.prod(1) + h.cumprod(1).sum(1) + torch.cdist(h, h).sum(1) + z.angle().sum(1) + torch.hypot(h[:, 0], h[:, 1] + 1)).mean()
def build(fix=None):
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(6, 4, generator=g) for _ in range(6)]
    for b in batches: b[2] = 0; b[4] = b[1]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: m(b), steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None, loss_finite_at_first_bad_step=None, also=[], why="subgradients are defined"))
