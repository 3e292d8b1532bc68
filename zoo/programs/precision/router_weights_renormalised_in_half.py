"""A mixture of experts scores its experts with a sigmoid, keeps the best two and divides by their sum plus 1e-20. The router runs in half precision, in which
1e-20 is zero; for one outlier token all scores underflow.
After https://github.com/sgl-project/sglang/pull/31017 (the epsilon of the top-k renormalisation is zero in float16, so the sum stays 0).
True cause: an epsilon that half precision rounds to zero."""
import torch
from torch import nn


class SigmoidTopK(nn.Module):
    def __init__(self, d, experts, k=2):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, d) * 0.1)
        self.bias = nn.Parameter(torch.full((experts,), -1.0))
        self.k = k

    def forward(self, x):
        scores = torch.sigmoid((x @ self.weight.t() + self.bias).half())
        top, index = scores.topk(self.k, dim=-1)
        top = top / (top.sum(-1, keepdim=True) + 1e-20)
        return top, index


class MoE(nn.Module):
    def __init__(self, d=12, experts=4):
        super().__init__()
        self.router = SigmoidTopK(d, experts)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(d, 2 * d), nn.SiLU(), nn.Linear(2 * d, d)) for _ in range(experts))

    def forward(self, x):
        gates, index = self.router(x)
        out = torch.zeros_like(x)
        for e, expert in enumerate(self.experts):
            w = (gates * (index == e)).sum(-1, keepdim=True).to(x.dtype)
            out = out + w * expert(x)
        return x + out


def build():
    torch.manual_seed(0)
    model = nn.Sequential(MoE(), nn.LayerNorm(12), nn.Linear(12, 5))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(6):
        x = torch.randn(16, 12, generator=g)
        if i == 4:
            with torch.no_grad():
                x[9] = -40.0 * model[0].router.weight.sum(0) / model[0].router.weight.sum(0).square().sum() - 60 * torch.linalg.pinv(model[0].router.weight).sum(1)
        batches.append((x, torch.randint(0, 5, (16,), generator=g)))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]), steps=6, autocast_dtype=None,
                truth=dict(cause="eps_underflow_half", also=("division_by_zero",), module="0.router", phase="forward", op="aten.div", first_bad_step=4, sample=9,
                           line="top = top / (top.sum(-1, keepdim=True) + 1e-20)", why="all scores of token 9 are zero in half precision, and so is 1e-20"))
