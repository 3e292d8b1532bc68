"""clicks/views is 0/0 for some rows in EVERY batch; it is data only (no gradient) and torch.where takes it out: innocent, in module `ctr`.
Guilty from step 3: a row of the mixture sums to exactly 0 (all gates closed for expert group 9) and is divided by its sum, in module `mix`."""
import torch, torch.nn as nn

class Ctr(nn.Module):
    def forward(s, clicks, views):
        r = clicks / views
        return torch.where(views > 0, r, torch.zeros_like(r))
class Mix(nn.Module):
    def __init__(s): super().__init__(); s.gate = nn.Embedding(10, 4)
    def forward(s, h, k):
        w = torch.relu(s.gate(k)); w = w / w.sum(-1, keepdim=True)
        return h * w
class Net(nn.Module):
    def __init__(s): super().__init__(); s.ctr = Ctr(); s.lin = nn.Linear(4, 4); s.mix = Mix(); s.head = nn.Linear(4, 1)
    def forward(s, c, v, k): return s.head(s.mix(torch.tanh(s.lin(s.ctr(c, v))), k))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    with torch.no_grad(): model.mix.gate.weight.uniform_(0.5, 1.5); model.mix.gate.weight[9] = -1.0
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        v = torch.randint(0, 3, (10, 4), generator=g).float(); v[0] = 0; c = torch.minimum(v, torch.randint(0, 3, (10, 4), generator=g).float())
        k = torch.randint(0, 9, (10,), generator=g)
        if i == 3: k[6] = 9
        batches.append((c, v, k, torch.randn(10, 1, generator=g)))
    def loss_fn(m, b): return nn.functional.mse_loss(m(*b[:3]), b[3])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="mix", phase="forward", op="aten.div", first_bad_step=3, innocent_module="ctr",
                           **{"not": ["where_unselected_branch", "bad_input_data", "empty_reduction"]}))
