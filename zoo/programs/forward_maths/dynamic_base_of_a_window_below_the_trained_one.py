"""Rotary embedding with a base that grows with the window, base * (s L / L0 - (s - 1)) ^ (d / (d - 2)). The formula is meant for windows of at least the trained length;
a batch of short documents makes the bracket negative.
After https://github.com/karpathy/nanochat/pull/376 (variants of RoPE scaling, among them the dynamic base).
True cause: a fractional power of a negative number."""
import torch
from torch import nn


class DynamicRotary(nn.Module):
    def __init__(self, dim, trained, scale=4.0, base=10000.0):
        super().__init__()
        self.dim, self.scale = dim, scale
        self.register_buffer("base", torch.tensor(base))
        self.register_buffer("trained", torch.tensor(float(trained)))

    def forward(self, length):
        growth = self.scale * length / self.trained - (self.scale - 1)
        base = self.base * growth.pow(self.dim / (self.dim - 2))
        inv_freq = 1.0 / base ** (torch.arange(0, self.dim, 2).float() / self.dim)
        return torch.outer(torch.arange(length).float(), inv_freq)


class Mixer(nn.Module):
    def __init__(self, d=12, trained=16):
        super().__init__()
        self.rope = DynamicRotary(d, trained)
        self.kv, self.q, self.out = nn.Linear(d, 2 * d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x):
        angles = self.rope(x.shape[1])
        k, v = self.kv(x).chunk(2, -1)
        turned = []
        for t in (self.q(x), k):
            a, b = t[..., ::2], t[..., 1::2]
            turned.append(torch.stack([a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()], -1).flatten(-2))
        scores = turned[0] @ turned[1].transpose(1, 2) / x.shape[-1] ** 0.5
        return x + self.out(scores.softmax(-1) @ v)


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(23, 12), Mixer(), nn.LayerNorm(12), nn.Linear(12, 23))
    opt = torch.optim.NAdam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(8)
    lengths = [16, 20, 32, 18, 9, 24]
    batches = [torch.randint(0, 23, (3, n), generator=g) for n in lengths]

    def masked_lm(m, ids):
        corrupted = ids.clone()
        corrupted[:, ::4] = 0
        return nn.functional.cross_entropy(m(corrupted)[:, ::4].flatten(0, 1), ids[:, ::4].flatten())

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=masked_lm, steps=6, autocast_dtype=None,
                truth=dict(cause="domain_error", module="1.rope", phase="forward", op="aten.pow", first_bad_step=4,
                           line="growth.pow(self.dim / (self.dim - 2))", why="a window of 9 of 16 gives 4 * 9 / 16 - 3 = -0.75, and the exponent is 1.2"))
