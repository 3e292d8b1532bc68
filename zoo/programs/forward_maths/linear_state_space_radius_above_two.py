"""A linear state-space layer, h = A h + x, whose A has a spectral radius above 2: the state doubles at every position, and the fourth batch
has sequences long enough to leave fp32. One cell module is called once a position.
True cause: an exploding recurrence inside one forward."""
import torch, torch.nn as nn

class Cell(nn.Module):
    def __init__(s, d): super().__init__(); s.A = nn.Parameter(2.2 * torch.eye(d)); s.B = nn.Parameter(torch.randn(3, d) * 0.1)
    def forward(s, h, x): return torch.addmm(x @ s.B, h, s.A)
class SSM(nn.Module):
    def __init__(s): super().__init__(); s.cell = Cell(4); s.norm = nn.LayerNorm(4); s.head = nn.Linear(4, 2)
    def forward(s, x):
        h = x.new_zeros(x.shape[0], 4)
        for t in range(x.shape[1]): h = s.cell(h, x[:, t])
        return s.head(s.norm(h / (1 + h.abs().amax(-1, keepdim=True))))

def build():
    torch.manual_seed(0); model = SSM(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, T, 3, generator=g), torch.randint(0, 2, (4,), generator=g)) for T in (6, 10, 8, 130, 9)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="exploding_recurrence", module="cell", phase="forward", op="aten.addmm", first_bad_step=3))
