"""An adapter that is initialised with the identity and regularised through its singular vectors."""
import torch, torch.nn as nn, torch.nn.functional as F

class Adapter(nn.Module):
    def __init__(s): super().__init__(); s.weight = nn.Parameter(torch.eye(5))
    def forward(s, x):
        u, sv, vh = torch.linalg.svd(s.weight)
        return x @ (u * sv.clamp(max=2.0)) @ vh
class Net(nn.Module):
    def __init__(s): super().__init__(); s.inp = nn.Linear(4, 5); s.adapter = Adapter(); s.head = nn.Linear(5, 2)
    def forward(s, x): return s.head(s.adapter(s.inp(x)))
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 4, generator=g), torch.randint(0, 2, (6,), generator=g)) for _ in range(2)]
    def loss_fn(m, b): return F.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="degenerate_linalg_backward", module="adapter", phase="backward", op="aten._linalg_svd", first_bad_step=0, line="torch.linalg.svd", loss_finite_at_first_bad_step=True))
