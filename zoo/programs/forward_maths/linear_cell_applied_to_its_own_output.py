"""One linear cell applied 600 times to its own output."""
import torch, torch.nn as nn, torch.nn.functional as F

class Net(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(4, 8); s.cell = nn.Linear(8, 8); s.dec = nn.Linear(8, 1)
    def forward(s, x, steps):
        h = s.enc(x)
        for _ in range(steps): h = s.cell(h)
        return s.dec(h)
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model.cell.weight.copy_(torch.eye(8) * 1.3)
    batches = [(torch.randn(4, 4, generator=g), n, torch.randn(4, 1, generator=g)) for n in (3, 4, 5, 600)]
    def loss_fn(m, b): return torch.tanh(m(b[0], b[1]) - b[2]).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="exploding_recurrence", module="cell", phase="forward", op="aten.addmm", first_bad_step=3, line="h = s.cell(h)"))
