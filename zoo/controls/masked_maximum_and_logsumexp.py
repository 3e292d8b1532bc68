"""Pooling over sets of different sizes: padding is -inf before max and logsumexp, and every set has at least one element. Healthy."""
import torch, torch.nn as nn

class SetNet(nn.Module):
    def __init__(s): super().__init__(); s.phi = nn.Linear(3, 8); s.rho = nn.Linear(16, 2)
    def forward(s, x, n):
        h = s.phi(x); pad = torch.arange(x.shape[1])[None, :, None] >= n[:, None, None]; h = h.masked_fill(pad, -torch.inf)
        return s.rho(torch.cat([h.amax(1), h.logsumexp(1)], 1))

def build():
    torch.manual_seed(0); m = SetNet(); g = torch.Generator().manual_seed(1)
    bs = [(torch.randn(4, 5, 3, generator=g), torch.randint(1, 6, (4,), generator=g), torch.randint(0, 2, (4,), generator=g)) for _ in range(5)]
    return dict(model=m, optimizer=torch.optim.SGD(m.parameters(), lr=0.05), batches=bs, steps=10, autocast_dtype=None,
                loss_fn=lambda m, b: nn.functional.cross_entropy(m(b[0], b[1]), b[2]), truth=dict(cause="benign", first_bad_step=None))
