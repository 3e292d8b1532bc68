"""VICReg: the variance term takes std over the batch; the last batch of the epoch (drop_last=False) has one image.
True cause: unbiased std of one element. GroupNorm is used, so nothing else minds a batch of one."""
import torch, torch.nn as nn, torch.nn.functional as F

class VicHead(nn.Module):
    def __init__(s, d): super().__init__(); s.proj = nn.Sequential(nn.Linear(d, 16), nn.ReLU(), nn.Linear(16, 8))
    def hinge(s, z): return F.relu(1.0 - (z.std(dim=0) + 1e-4)).mean()
    def forward(s, a, b):
        a, b = s.proj(a), s.proj(b)
        return F.mse_loss(a, b) * 25 + 12.5 * (s.hinge(a) + s.hinge(b))
class Net(nn.Module):
    def __init__(s):
        super().__init__(); s.bb = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()); s.vic = VicHead(8)
    def forward(s, x1, x2): return s.vic(s.bb(x1), s.bb(x2))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    g = torch.Generator().manual_seed(1); data = torch.randn(25, 3, 8, 8, generator=g)
    batches = [(c, c + 0.1 * torch.randn(c.shape, generator=g)) for c in data.split(6)]           # 6 6 6 6 1
    def loss_fn(m, b): return m(*b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="std_of_one_element", module="vic", phase="forward", op="aten.std", first_bad_step=4))
