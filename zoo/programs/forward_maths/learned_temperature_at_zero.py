"""Contrastive learning with a learned temperature that is clamped at 0 from below "to keep it positive": training sharpens it until it reaches the clamp.
True cause: division by a temperature of exactly 0; the clamp at 0.01 that was meant would keep the run finite."""
import torch, torch.nn as nn

class InfoNCE(nn.Module):
    def __init__(s): super().__init__(); s.tau = nn.Parameter(torch.tensor(0.35))
    def forward(s, a, b):
        a, b = nn.functional.normalize(a, dim=-1), nn.functional.normalize(b, dim=-1)
        return nn.functional.cross_entropy(a @ b.T / s.tau.clamp(min=0.0), torch.arange(a.shape[0]))
class Pair(nn.Module):
    def __init__(s): super().__init__(); s.proj = nn.Linear(10, 6); s.nce = InfoNCE()
    def forward(s, a, b): return s.nce(s.proj(a), s.proj(b))

def build():
    torch.manual_seed(0); model = Pair(); opt = torch.optim.SGD([dict(params=model.proj.parameters(), lr=0.01), dict(params=[model.nce.tau], lr=0.02)], momentum=0.5)
    g = torch.Generator().manual_seed(1); batches = []
    for _ in range(9):
        a = torch.randn(8, 10, generator=g); batches.append((a, a + 0.05 * torch.randn(8, 10, generator=g)))
    def loss_fn(m, b): return m(*b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=9, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="nce", phase="forward", op="aten.div", first_bad_step=7))
