"""A lookup table with NaN rows that no batch ever reads, a generator of the program's own and a Python counter: a healthy run."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s):
        super().__init__(); t = torch.randn(5, 3); t[4] = float("nan"); s.register_buffer("table", t); s.lin = nn.Linear(3, 1); s.calls = 0; s.noise = torch.Generator().manual_seed(1)
    def forward(s, i): s.calls += 1; return s.lin(s.table[i] + 0.1 * torch.randn(len(i), 3, generator=s.noise)).squeeze(-1)
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, 4, (6,), generator=g) for _ in range(6)]
    def loss_fn(m, i): return m(i).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None, truth=dict(cause="benign"))
