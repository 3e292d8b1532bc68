"""Adapters with a higher rate for the B matrices (ratio 64). The ratio is applied when the groups are built and once more by a helper that "sets the adapter rates".
After https://github.com/AkaliKong/iLoRA/issues/6 (the loss is NaN after a while; a smaller learning rate or clipping is advised).
True cause: the learning rate of one parameter group is far too high."""
import torch
from torch import nn

RATIO = 64


class LoRALinear(nn.Module):
    def __init__(self, base, r=4, alpha=16):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(r, base.in_features) / base.in_features ** 0.5)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, r))
        self.scaling = alpha / r

    def forward(self, x):
        return self.base(x) + (x @ self.lora_A.t()) @ self.lora_B.t() * self.scaling


class Ranker(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.inp, self.mid, self.out = LoRALinear(nn.Linear(10, d)), LoRALinear(nn.Linear(d, d)), LoRALinear(nn.Linear(d, 1))

    def forward(self, x):
        h = self.inp(x)
        h = h + nn.functional.gelu(self.mid(h)) * h
        return self.out(h).squeeze(-1)


def lora_plus_groups(model, rate):
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    return [{"params": [p for n, p in named if "lora_A" in n], "lr": rate, "tag": "A"},
            {"params": [p for n, p in named if "lora_B" in n], "lr": rate * RATIO, "tag": "B"}]


def set_adapter_rates(optimizer):
    for group in optimizer.param_groups:
        if group["tag"] == "B":
            group["lr"] *= RATIO


def build():
    torch.manual_seed(4)
    model = Ranker()
    opt = torch.optim.SGD(lora_plus_groups(model, rate=3e-4))
    set_adapter_rates(opt)
    g = torch.Generator().manual_seed(5)
    batches = [(torch.randn(24, 10, generator=g), torch.randn(24, generator=g)) for _ in range(4)]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: (m(b[0]) - b[1]).square().mean(), steps=14, autocast_dtype=None,
                truth=dict(cause="lr_too_high", also=("exploding_gradient",), module="loss", phase="forward", op="aten.pow", first_bad_step=2, line="(m(b[0]) - b[1]).square().mean()",
                           why="with the ratio applied once the run stays finite"))
