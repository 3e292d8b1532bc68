"""Factorisation machine with two tasks (click, dwell). One row of batch 5 has a price of 1e25 (a database sentinel), finite but absurd.
True cause: that one value; (sum v x)^2 overflows and inf - inf is NaN. Finite without the sample; all other batches are in [-3, 3]."""
import torch, torch.nn as nn

class Interactions(nn.Module):
    def __init__(s, n, k): super().__init__(); s.v = nn.Parameter(0.1 * torch.randn(n, k))
    def forward(s, x): return 0.5 * ((x @ s.v).pow(2) - x.pow(2) @ s.v.pow(2))
class FM(nn.Module):
    def __init__(s, n=7, k=4): super().__init__(); s.lin = nn.Linear(n, 1); s.inter = Interactions(n, k); s.heads = nn.ModuleDict(dict(click=nn.Linear(k, 1), dwell=nn.Linear(k, 1)))
    def forward(s, x):
        h = s.inter(x); return {k: (f(h) + s.lin(x)).squeeze(-1) for k, f in s.heads.items()}

def build():
    torch.manual_seed(0); model = FM(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [dict(x=torch.randn(10, 7, generator=g).clamp(-3, 3), click=torch.randint(0, 2, (10,), generator=g).float(), dwell=torch.rand(10, generator=g)) for _ in range(8)]
    batches[5]["x"][6, 2] = 1e25
    def loss_fn(m, b):
        o = m(b["x"])
        terms = dict(click=nn.functional.binary_cross_entropy_with_logits(o["click"], b["click"]), dwell=nn.functional.huber_loss(o["dwell"], b["dwell"]))
        return sum(0.5 * t for t in terms.values())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="input_out_of_scale", also=["bad_input_data"], module="inter", phase="forward", op="aten.pow", first_bad_step=5, bad_path="x[6]"))
