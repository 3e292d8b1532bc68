"""Own RMSprop without eps: rows of the embedding that have not been seen have v = 0 and g = 0, so the update is 0/0."""
import torch, torch.nn as nn, torch.nn.functional as F
class MyRMS(torch.optim.Optimizer):
    def __init__(s, groups, eps): super().__init__(groups, dict(lr=1e-3)); s.eps = eps
    @torch.no_grad()
    def step(s, closure=None):
        for gr in s.param_groups:
            for p in gr["params"]:
                if p.grad is None: continue
                st = s.state[p]
                if not st: st["v"] = torch.zeros_like(p)
                st["v"].mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
                p.sub_(gr["lr"] * p.grad / (st["v"].sqrt() + s.eps))
class Net(nn.Module):
    def __init__(s): super().__init__(); s.user = nn.Embedding(10, 4); s.rare = nn.Embedding(10, 4); s.out = nn.Linear(4, 1)
    def forward(s, i, j): h = s.user(i); h = h + s.rare(j) if j is not None else h; return s.out(h).squeeze(-1)
def build(fix=None):
    torch.manual_seed(0); model = Net(); eps = 1e-8 if fix == "true" else 0.0
    opt = MyRMS([dict(params=[model.user.weight, model.rare.weight]), dict(params=model.out.parameters(), lr=1e-3 if fix == "innocent" else 0.05)], eps)
    g = torch.Generator().manual_seed(1); batches = []
    for k in range(6):
        i = torch.arange(10); j = torch.tensor([0, 1, 2, 3, 4] * 2) if k >= 3 else None
        batches.append((i, j, torch.randn(10, generator=g)))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: F.mse_loss(m(b[0], b[1]), b[2]), steps=6, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="optimizer", phase="optimizer", op="aten.div", first_bad_step=3, param="rare.weight",
                           loss_finite_at_first_bad_step=True, also=["adam_eps_underflow_half"], why="0/sqrt(0) in the own optimizer for unseen rows of `rare`"))
