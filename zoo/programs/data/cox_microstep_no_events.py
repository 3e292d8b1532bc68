"""Cox partial likelihood, four micro-batches a step, loss of each divided by its number of events. In step 2 the third micro-batch
is fully censored: 0/0. The exp of large risks (innocent: shifted by the max) and the masked log look worse."""
import torch, torch.nn as nn

class Cox(nn.Module):
    def __init__(s, fix): super().__init__(); s.fix = fix
    def forward(s, risk, time, event):
        o = torch.argsort(time, descending=True); r, e = risk[o], event[o]
        mx = r.max().detach(); lse = torch.log(torch.cumsum(torch.exp(r - mx), 0)) + mx
        n = e.sum()
        if s.fix == "true": n = n.clamp(min=1)
        return -((r - lse) * e).sum() / n
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.f = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 1)); s.cox = Cox(fix)
    def forward(s, x, t, e): return s.cox(20 * s.f(x).squeeze(-1), t, e)

def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.AdamW(model.parameters(), lr=1e-4 if fix == "innocent" else 3e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        x = torch.randn(32, 5, generator=g); t = torch.rand(32, generator=g) * 10; e = (torch.rand(32, generator=g) < 0.5).float(); e[::8] = 1
        if i == 2: e[16:24] = 0                                    # the third micro-batch: everybody censored
        batches.append((x, t, e))
    def loss_fn(m, b): return sum(m(*(v[k:k + 8] for v in b)) for k in range(0, 32, 8)) / 4
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="empty_reduction", module="cox", phase="forward", op="aten.div", first_bad_step=2, loss_finite_at_first_bad_step=False, also=["division_by_zero"],
                           why="no event in micro-batch 3: divided by a count of exactly 0"))
