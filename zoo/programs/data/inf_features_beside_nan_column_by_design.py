"""Every batch has NaN in the optional column (nan_to_num'ed, as intended). From step 3 one row of the main features is Inf, and its sample weight 0 does not hide it."""
import torch, torch.nn as nn, torch.nn.functional as F
class Net(nn.Module):
    def __init__(s): super().__init__(); s.main = nn.Linear(6, 8); s.aux = nn.Linear(2, 8); s.out = nn.Linear(8, 1)
    def forward(s, x, a): return s.out(torch.tanh(s.main(x) * 1.0 + s.aux(torch.nan_to_num(a, nan=0.0))))
def build(fix=None):
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for k in range(6):
        x = torch.randn(8, 6, generator=g); a = torch.randn(8, 2, generator=g); w = torch.ones(8)
        if fix != "innocent": a[k] = float("nan")
        if k == 3: w[6] = 0.0; x[6, 2] = 0.0 if fix == "true" else float("inf")
        batches.append(dict(x=x, aux=a, w=w, y=torch.randn(8, generator=g)))
    def loss_fn(m, b): return ((m(b["x"], b["aux"]).squeeze(-1) - b["y"]).square() * b["w"]).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="bad_input_data", module="data", phase="data", op="data", first_bad_step=3, bad_path="x[6]",
                           loss_finite_at_first_bad_step=True, also=[], why="x[6,2] is Inf; tanh makes the forward finite, the weight gradient is 0*Inf; aux NaNs are handled"))
