"""Deep ensemble through vmap + functional_call: loss has log(spread over members). At step 3 population-based training copies the best
member over the others (a legal write): the spread is exactly 0 and its log -inf."""
import torch, torch.nn as nn
from torch.func import functional_call, vmap

class Member(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Linear(4, 8); s.b = nn.Linear(8, 1)
    def forward(s, x): return s.b(torch.tanh(s.a(x)))
class Ensemble(nn.Module):
    def __init__(s, n=3):
        super().__init__(); s.base = [Member()]; ms = [Member() for _ in range(n)]
        s.stack = nn.ParameterDict({k.replace(".", "_"): nn.Parameter(torch.stack([dict(m.named_parameters())[k].detach() for m in ms])) for k, _ in ms[0].named_parameters()})
    def forward(s, x):
        p = {k.replace("_", "."): v for k, v in s.stack.items()}
        return vmap(lambda q: functional_call(s.base[0], q, (x,)))(p)
class Head(nn.Module):
    def __init__(s, fix): super().__init__(); s.ens = Ensemble(); s.fix = fix
    def forward(s, x):
        y = s.ens(x).squeeze(-1); mu = y.mean(0); var = (y - y[:1]).pow(2).mean(0)
        return mu, torch.log(var + (1e-4 if s.fix == "true" else 0.0))

def build(fix=None):
    torch.manual_seed(0); model = nn.Sequential(Head(fix)); opt = torch.optim.Adam(model.parameters(), lr=1e-3 if fix == "innocent" else 1e-2); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 4, generator=g), torch.randn(8, generator=g), k) for k in range(6)]
    def loss_fn(m, b):
        if b[2] == 3:
            with torch.no_grad():
                for v in m[0].ens.stack.values(): v.copy_(v[:1].expand_as(v).clone())
        mu, lv = m(b[0]); return ((mu - b[1]) ** 2).mean() + 0.01 * (lv - 0.1).abs().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="0", phase="forward", op="aten.log", first_bad_step=3, loss_finite_at_first_bad_step=False,
                           why="identical members: variance exactly 0; the parameter write is finite and legal"))
