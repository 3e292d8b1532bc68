"""SAC: the correction log(1 - tanh(u)^2) without an epsilon. For |u| above about 9, tanh is exactly 1 in float32.
True cause: log of an exact zero."""
import torch, torch.nn as nn

class Actor(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Sequential(nn.Linear(3, 16), nn.ReLU()); s.mu = nn.Linear(16, 2); s.log_std = nn.Linear(16, 2)
    def forward(s, o, eps):
        h = s.body(o); log_std = s.log_std(h).clamp(-5, 2); u = s.mu(h) + eps * log_std.exp(); a = torch.tanh(u)
        return a, (-0.5 * eps ** 2 - log_std - torch.log(1 - a ** 2)).sum(-1)

def build():
    torch.manual_seed(0); model = Actor(); opt = torch.optim.Adam(model.parameters(), lr=3e-4)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        eps = torch.randn(5, 2, generator=g).clamp(-2, 2)
        o = torch.randn(5, 3, generator=g)
        if i == 4: eps[2, 0] = 60.0
        batches.append((o, eps))
    def loss_fn(m, b): a, logp = m(*b); return (0.2 * logp - (1 - a ** 2).sum(-1)).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="loss", phase="forward", op="aten.log", first_bad_step=4))
