"""LoRA on a frozen layer under float16 autocast, with alpha / r = 1024 ("rank-stabilised", the author says) applied between the two
projections. Ordinary activations stay near 1000 there. Batch 4 has an outlier feature of 600, as big language models have: the scaled
bottleneck passes 65504 and becomes Inf in float16. In float32 the step is finite. The true cause is the overflow of an activation in
half precision; the learning rate is ordinary."""
import torch
from torch import nn


class LoRALinear(nn.Module):
    def __init__(self, d_in, d_out, r=4, alpha=4096):
        super().__init__()
        self.base = nn.Linear(d_in, d_out).requires_grad_(False)
        self.down = nn.Linear(d_in, r, bias=False)
        self.up = nn.Linear(r, d_out, bias=False)
        nn.init.normal_(self.down.weight, std=0.5)
        nn.init.zeros_(self.up.weight)
        self.scaling = alpha / r

    def forward(self, x):
        return self.base(x) + self.up(self.down(x) * self.scaling)


class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = LoRALinear(24, 24)
        self.head = nn.Linear(24, 4)

    def forward(self, x):
        return self.head(torch.tanh(self.q_proj(x)))


def loss_fn(model, batch):
    return nn.functional.cross_entropy(model(batch[0]).float(), batch[1])


def build():
    torch.manual_seed(4)
    model = Adapted()
    with torch.no_grad():
        model.q_proj.down.weight[:, 9] = torch.tensor([0.6, -0.7, 0.8, -0.5])
    batches = [(torch.randn(12, 24), torch.randint(0, 4, (12,))) for _ in range(6)]
    batches[4][0][3, 9] = 600.0
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)
    truth = dict(
        cause="fp16_forward_overflow", also=["input_out_of_scale"], first_bad_step=4, phase="forward", module="q_proj", op="aten.mul",
        line="return self.base(x) + self.up(self.down(x) * self.scaling)", sample=3,
        why="about 360 * 1024 = 370000 is above 65504, the limit of float16; the same step in float32 is finite",
        repair=("self.up(self.down(x) * self.scaling)", "self.up(self.down(x)) * self.scaling"),
    )
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=torch.float16, truth=truth)
