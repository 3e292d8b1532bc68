"""A mixture of experts gathers its tokens in a buffer from torch.empty; when an expert gets fewer tokens than its capacity, the rest is old memory.
After https://github.com/fla-org/flash-linear-attention/pull/892 (trailing rows are never written and inherit whatever the allocator hands back).
True cause: memory that was never written."""
import torch
import torch.nn as nn


class Experts(nn.Module):
    def __init__(self, n=2, d=6, capacity=4):
        super().__init__()
        self.w = nn.Parameter(torch.randn(n, d, d) * 0.3)
        self.n, self.capacity = n, capacity

    def forward(self, x, route):
        torch.use_deterministic_algorithms(True)          # fills torch.empty with NaN, as debug runs do
        buf = torch.empty(self.n, self.capacity, x.shape[-1])
        torch.use_deterministic_algorithms(False)
        for e in range(self.n):
            mine = x[route == e]
            buf[e, :len(mine)] = mine
        return torch.bmm(buf, self.w)


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.experts, self.out = nn.Linear(3, 6), Experts(), nn.Linear(6, 1)

    def forward(self, x, route):
        y = self.experts(self.inp(x), route)
        return self.out(y.mean(1))


def build():
    torch.manual_seed(4)
    moe = MoE()
    opt = torch.optim.Adam(moe.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(5)
    routes = [[0, 1, 0, 1, 0, 1, 0, 1], [0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 0, 1, 0, 0, 1], [1, 1, 1, 1, 0, 0, 0, 0]]
    batches = [dict(x=torch.randn(len(r), 3, generator=g), route=torch.tensor(r)) for r in routes]
    return dict(model=moe, optimizer=opt, batches=batches, loss_fn=lambda m, b: (m(**b) - 1).pow(2).mean(), steps=4, autocast_dtype=None,
                truth=dict(cause="uninitialised_memory", module="experts", phase="forward", op="aten.empty", first_bad_step=2, line="buf = torch.empty("))
