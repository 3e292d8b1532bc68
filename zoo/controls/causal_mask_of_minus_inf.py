"""A causal attention with a mask of -inf; every query sees at least itself, so the softmax is always finite. Healthy."""
import torch
from torch import nn


class Causal(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, 5)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        s = q @ k.transpose(1, 2) / 8 ** 0.5
        s = s.masked_fill(torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1), float("-inf"))
        return self.out(s.softmax(-1) @ v)


def build():
    torch.manual_seed(0)
    m = Causal()
    g = torch.Generator().manual_seed(1)
    bs = [(torch.randn(3, 6, 8, generator=g), torch.randint(0, 5, (3, 6), generator=g)) for _ in range(4)]
    return dict(model=m, optimizer=torch.optim.AdamW(m.parameters(), lr=1e-3), batches=bs, steps=8, autocast_dtype=None,
                loss_fn=lambda m, b: nn.functional.cross_entropy(m(b[0]).flatten(0, 1), b[1].flatten()), truth=dict(cause="benign", first_bad_step=None))
