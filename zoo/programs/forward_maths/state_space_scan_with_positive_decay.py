"""A state space layer h = exp(A dt) h + B x whose A lost its minus sign: every step multiplies the state by more than 1.
True cause: exploding recurrence inside one module."""
import torch, torch.nn as nn

class SSM(nn.Module):
    def __init__(s, d): super().__init__(); s.log_a = nn.Parameter(torch.rand(d)); s.b = nn.Parameter(torch.randn(d)); s.c = nn.Parameter(torch.randn(d))
    def forward(s, x):
        decay = torch.exp(torch.exp(s.log_a) * 0.5); h = torch.zeros_like(s.b).expand(x.shape[0], -1); ys = []
        for t in range(x.shape[1]):
            h = decay * h + s.b * x[:, t:t + 1]
            ys.append((h * s.c).sum(-1))
        return torch.stack(ys, 1)
def build():
    torch.manual_seed(0); model = nn.Sequential(SSM(5)); opt = torch.optim.Adam(model.parameters(), lr=1e-6); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(3, n, generator=g) for n in (6, 8, 7, 400)]
    def loss_fn(m, x): return torch.tanh(m(x) - x).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="exploding_recurrence", module="0", phase="forward", op="aten.mul", first_bad_step=3))
