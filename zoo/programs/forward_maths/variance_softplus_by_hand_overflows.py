"""A variance head writes softplus by hand: log(1 + exp(x)). For x = 95 exp overflows.
True cause: exp overflow; softplus is the remedy."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.f = nn.Linear(4, 8); s.mu = nn.Linear(8, 1); s.sp = nn.Linear(8, 1)
    def forward(s, x): h = torch.relu(s.f(x)); return s.mu(h), torch.log(1 + torch.exp(s.sp(h))) + 1e-3
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model.sp.weight.abs_()
    batches = [(torch.randn(8, 4, generator=g), torch.randn(8, 1, generator=g)) for _ in range(5)]; batches[3][0][2] *= 3000
    def loss_fn(m, b):
        mu, sd = m(b[0]); return (sd.log() + 0.5 * ((b[1] - mu) / sd).square()).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="loss", phase="forward", op="aten.exp", first_bad_step=3))
