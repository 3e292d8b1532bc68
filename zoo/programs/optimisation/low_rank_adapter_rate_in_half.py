"""Adapters are trained under float16 autocast with the rate of a full fine-tuning times a thousand; the adapted layer leaves the range of float16.
After https://github.com/yardenfren1996/B-LoRA/issues/16 (loss becomes NaN; stable with the learning rate 5e-6).
True cause: the learning rate is too high; the overflow of float16 is where it shows first."""
import torch
from torch import nn


class LoRALinear(nn.Module):
    def __init__(self, base, r=4, alpha=16):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(base.in_features, r, bias=False), nn.Linear(r, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)
        self.scale = alpha / r

    def forward(self, x):
        return self.base(x) + self.scale * self.up(self.down(x))


class Attn(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.q, self.k, self.v = (LoRALinear(nn.Linear(d, d)) for _ in range(3))

    def forward(self, x):
        scores = self.q(x) @ self.k(x).transpose(1, 2) / 32 ** 0.5
        return x + scores.softmax(-1) @ self.v(x)


def build():
    torch.manual_seed(5)
    model = nn.Sequential(Attn(), Attn(), nn.LayerNorm(32), nn.Linear(32, 6))
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=4.0, weight_decay=0.0)
    g = torch.Generator().manual_seed(6)
    batches = [(torch.randn(4, 9, 32, generator=g), torch.randint(0, 6, (4, 9), generator=g)) for _ in range(4)]

    def loss_fn(m, b):
        logits = m(b[0])
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), b[1].flatten())

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=12, autocast_dtype=torch.float16,
                truth=dict(cause="lr_too_high", also=("fp16_forward_overflow",), module="1", phase="forward", op="aten.bmm", first_bad_step=1, line="scores ="))
