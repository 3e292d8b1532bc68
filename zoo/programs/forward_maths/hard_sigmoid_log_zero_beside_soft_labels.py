"""Targets are smeared to [-0.02, 1.02] in every batch (innocent: the formula is linear in them). Guilty: a hard sigmoid gives p = 0 exactly and
the hand-written BCE takes log(p). Clean 0/1 targets fail at the same step and place."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Linear(6, 8); s.user = nn.Embedding(10, 8); s.out = nn.Linear(8, 1); s.gate = nn.Hardsigmoid()
    def forward(s, x, u): return s.gate(s.out(torch.tanh(s.body(x)) + s.user(u)))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    with torch.no_grad(): model.out.weight.fill_(0.2); model.out.bias.zero_(); model.user.weight.mul_(0.1); model.user.weight[7] = -20.0   # user 7 never clicks
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        u = torch.randint(0, 7, (12,), generator=g)
        if i == 3: u[4] = 7
        t = (torch.rand(12, 1, generator=g) > 0.5).float() * 1.04 - 0.02
        if i == 3: t[4] = 1.02
        batches.append(dict(x=torch.randn(12, 6, generator=g), u=u, t=t))
    def loss_fn(m, b):
        p = m(b["x"], b["u"]); t = b["t"]
        pos = -t * torch.log(p)
        neg = -(1 - t) * torch.log1p(-0.999 * p)
        return (pos + neg).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="loss", where="loss_fn", phase="forward", op="aten.log", first_bad_step=3, grads_finite=True,
                           **{"not": ["label_out_of_range", "bad_input_data"]}))
