"""Weight-decomposed adapters on a pretrained projection: the magnitude starts at the norm of each row and is divided by the norm of the adapted row. A few rows
of the released projection are exactly zero.
After https://github.com/huggingface/peft/issues/2049 (511 rows of an o_proj have norm zero; use_dora=True gives NaN at step 0).
True cause: division by a norm of zero."""
import torch
from torch import nn


class DoraLinear(nn.Module):
    def __init__(self, base, r=4, alpha=8):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Linear(base.in_features, r, bias=False)
        self.lora_B = nn.Linear(r, base.out_features, bias=False)
        nn.init.zeros_(self.lora_B.weight)
        self.scaling = alpha / r
        self.magnitude = nn.Parameter(self.weight_norm())

    def weight_norm(self):
        delta = self.scaling * (self.lora_B.weight @ self.lora_A.weight)
        return torch.linalg.norm(self.base.weight + delta, dim=1).detach()

    def forward(self, x):
        scale = (self.magnitude / self.weight_norm()).view(1, -1)
        out = nn.functional.linear(x, self.base.weight)
        return scale * (out + self.lora_B(self.lora_A(x)) * self.scaling)


class Attention(nn.Module):
    def __init__(self, d=12):
        super().__init__()
        self.qkv, self.o_proj = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.o_proj(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True))


def apply_dora(module, target):
    for name, child in module.named_children():
        if name == target:
            setattr(module, name, DoraLinear(child))
        else:
            apply_dora(child, target)


def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 12), Attention(), nn.Linear(12, 10))
    with torch.no_grad():
        model[1].o_proj.weight[[4, 7]] = 0.0                 # heads that pretraining never used
    model.requires_grad_(False)
    apply_dora(model, "o_proj")
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    g = torch.Generator().manual_seed(6)
    batches = [torch.randint(0, 10, (3, 9), generator=g) for _ in range(3)]

    def loss_fn(m, ids):
        return nn.functional.cross_entropy(m(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="1.o_proj", phase="forward", op="aten.div", first_bad_step=0, loss_finite_at_first_bad_step=False,
                           line="scale = (self.magnitude / self.weight_norm())", why="rows 4 and 7 of the base are zero and the adapter starts at zero: 0 / 0"))
