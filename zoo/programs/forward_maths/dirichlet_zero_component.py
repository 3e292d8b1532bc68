"""Dirichlet likelihood of proportions of which one is exactly 0 in batch 3: (a-1) log 0. Softplus concentrations and lgamma are innocent."""
import torch, torch.nn as nn, torch.nn.functional as F
class Head(nn.Module):
    def __init__(s, fix): super().__init__(); s.fix = fix
    def forward(s, a, p):
        if s.fix == "true": p = (p + 1e-4) / (p + 1e-4).sum(-1, keepdim=True)
        return -torch.distributions.Dirichlet(a).log_prob(p).mean()
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.f = nn.Linear(4, 3); s.head = Head(fix); s.fix = fix
    def forward(s, x, p):
        a = F.softplus(s.f(x)) + 1.5; l = s.head(a, p)
        return l if s.fix == "innocent" else l + 1e-3 * torch.lgamma(a).mean() + 1e-3 * torch.special.xlogy(p, p).sum()
def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        p = torch.softmax(torch.randn(8, 3, generator=g), -1)
        if i == 3: p[6] = torch.tensor([0.25, 0.75, 0.0])
        batches.append((torch.randn(8, 4, generator=g), p))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: m(*b), steps=6, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="head", phase="forward", op="aten.xlogy", first_bad_step=3,
                           loss_finite_at_first_bad_step=False, also=["bad_input_data", "label_out_of_range"], why="xlogy(a-1, 0) = -inf; xlogy(0, 0) elsewhere is 0"))
