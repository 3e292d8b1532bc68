"""Metric learning: a bag of padding tokens has a zero embedding, divided by its norm."""
import torch, torch.nn as nn, torch.nn.functional as F

class Proj(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(10, 5, padding_idx=0)
    def forward(s, i):
        e = s.emb(i).sum(1)
        return e / e.norm(dim=-1, keepdim=True)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.proj = Proj(); s.classes = nn.Parameter(torch.randn(3, 5))
    def forward(s, i): return s.proj(i) @ s.classes.t() * 8
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randint(1, 10, (4, 3), generator=g), torch.randint(0, 3, (4,), generator=g)) for _ in range(3)]; batches[1][0][0] = 0
    def loss_fn(m, b): return F.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="proj", phase="forward", op="aten.div", first_bad_step=1, line="e / e.norm"))
