"""CONTROL: vector_norm, std, cdist, complex abs and F.normalize at exact zeros. torch defines their subgradient there as 0: nothing goes wrong."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Linear(4, 6, bias=False); s.b = nn.Linear(6, 1)
    def forward(s, x):
        h = s.a(x); z = torch.complex(h, torch.zeros_like(h))
        return s.b(h).mean() + torch.linalg.vector_norm(h, dim=-1).mean() + h.std(-1).mean() + torch.cdist(h, h).mean() + z.abs().mean() + nn.functional.normalize(h, dim=-1).sum()

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        x = torch.randn(4, 4, generator=g); x[2:] = 0.0; batches.append(x)
    def loss_fn(m, b): return m(b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
