"""CONTROL: exact zeros everywhere a slope could be infinite, through operations that PyTorch makes safe: norm, std, cdist, F.normalize, cosine_similarity, atan2
and prod at 0. Forward and backward are finite (sqrt of a sum of squares would not be)."""
import torch, torch.nn as nn

class Zeros(nn.Module):
    def forward(s, h):
        F = nn.functional
        return (h.norm(dim=-1).mean() + h.std(-1).mean() + torch.cdist(h, h).mean() + F.normalize(h, dim=-1).mean()
                + F.cosine_similarity(h, h.flip(0), dim=-1).mean() + torch.atan2(h[:, 0], h[:, 1]).mean() + h.prod(-1).mean())
class Net(nn.Module):
    def __init__(s): super().__init__(); s.fc = nn.Linear(5, 4); s.zeros = Zeros()
    def forward(s, x, keep): return s.zeros(s.fc(x) * keep)

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adamax(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 5, generator=g), (torch.rand(6, 1, generator=g) > 0.3).float()) for _ in range(8)]
    def loss_fn(m, b): return m(*b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
