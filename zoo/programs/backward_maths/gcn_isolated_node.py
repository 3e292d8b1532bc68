"""Graph convolution with learned edge weights: D^-1/2 is guarded by torch.where(deg > 0, deg ** -0.5, 0). The forward is right; in the
backward an isolated node multiplies its zero gradient with the infinite slope of deg ** -0.5 at 0.
True cause: 0 * inf in the unselected branch of torch.where."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class SymNorm(nn.Module):
    def forward(s, ei, w, n):
        deg = torch.zeros(n).index_add(0, ei[1], w)
        dis = torch.where(deg > 0, deg ** -0.5, torch.zeros(()))
        return dis[ei[0]] * w * dis[ei[1]]
class GCN(nn.Module):
    def __init__(s):
        super().__init__(); s.gate = nn.Linear(3, 1); s.norm = SymNorm(); s.lin = nn.Linear(6, 10); s.out = nn.Linear(10, 2)
    def forward(s, x, ei, ea):
        w = nn.functional.softplus(s.gate(ea)).squeeze(-1); w = w * (ei[0] != ei[1])          # self loops count nothing
        c = s.norm(ei, w, len(x)); h = s.lin(x)
        return s.out(torch.relu(torch.zeros_like(h).index_add(0, ei[1], c[:, None] * h[ei[0]]) + h))

def build():
    torch.manual_seed(11); model = GCN(); opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    g = torch.Generator().manual_seed(15); batches = []
    for i in range(6):
        src = torch.arange(12) % 7; dst = (src + 1 + torch.arange(12) // 7) % 7; ei = torch.stack([src, dst])
        if i == 2: ei[0, ei[1] == 3] = 3                                    # node 3 has only self loops left
        batches.append((torch.randn(7, 6, generator=g), ei, torch.randn(12, 3, generator=g), torch.randint(0, 2, (7,), generator=g)))
    def loss_fn(m, b): return nn.functional.cross_entropy(m(*b[:3]), b[3])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", module="norm", phase="backward", op="aten.pow", first_bad_step=2,
                           loss_finite_at_first_bad_step=True))
