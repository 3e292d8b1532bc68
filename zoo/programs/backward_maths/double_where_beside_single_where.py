"""Two pairwise-distance modules. `near` guards the sqrt rightly (double where), `far` only after it. The diagonal is 0 in both.
Forward finite; only the node in `far` gives 0 * inf for the places that were not selected."""
import torch, torch.nn as nn

def sq(z): d = z[:, None] - z[None]; return (d * d).sum(-1)
class Near(nn.Module):
    def forward(s, z):
        d = sq(z); ok = d > 0
        return torch.where(ok, torch.sqrt(torch.where(ok, d, torch.ones_like(d))), torch.zeros_like(d))
class Far(nn.Module):
    def forward(s, z):
        d = sq(z); ok = d > 0
        return torch.where(ok, torch.sqrt(d), torch.zeros_like(d))
class Net(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(4, 3); s.near = Near(); s.far = Far()
    def forward(s, x, use_far):
        z = s.enc(x); out = s.near(z)
        return out + 0.1 * s.far(z * 2) if use_far else out

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 4, generator=g), torch.rand(6, 6, generator=g), i == 2) for i in range(5)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0], b[2]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", module="far", phase="backward", op="aten.sqrt", also_op=["aten.div"], first_bad_step=2,
                           loss_finite_at_first_bad_step=True, innocent_module="near", **{"not": ["division_by_zero", "lr_too_high"]}))
