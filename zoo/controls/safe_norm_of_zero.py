"""CONTROL: torch.norm and F.normalize of zero rows have a zero gradient."""
import torch, torch.nn as nn, torch.nn.functional as F

class N(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(6, 4, padding_idx=0); s.lin = nn.Linear(4, 2)
    def forward(s, i): e = s.emb(i); return s.lin(F.normalize(e, dim=-1)), e.norm(dim=-1)
def build():
    torch.manual_seed(0); model = N(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, 6, (4, 3), generator=g) for _ in range(4)]
    def loss_fn(m, i): y, n = m(i); return y.square().mean() + n.mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
