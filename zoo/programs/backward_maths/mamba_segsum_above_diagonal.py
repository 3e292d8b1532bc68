"""Mamba-2 style chunked scan: decay matrix where(i >= j, exp(cum_i - cum_j), 0). Above the diagonal the exponent is positive and grows with length.
True cause: exp of the unselected (upper) triangle is inf for the long sequence of batch 3; where() hides it in forward, backward is 0 * inf. Loss finite."""
import torch, torch.nn as nn

class SSD(nn.Module):
    def __init__(s, d): super().__init__(); s.inp = nn.Linear(d, 2 * d); s.dt = nn.Linear(d, 1); s.a_log = nn.Parameter(torch.zeros(())); s.out = nn.Linear(d, d)
    def forward(s, x):
        v, b = s.inp(x).chunk(2, -1)
        step = nn.functional.softplus(s.dt(x)).squeeze(-1) * -s.a_log.exp()         # negative: a decay
        cum = step.cumsum(-1); T = x.shape[1]
        diff = cum[:, :, None] - cum[:, None, :]
        keep = torch.ones(T, T, dtype=torch.bool).tril()
        decay = torch.where(keep, torch.exp(diff), torch.zeros(()))
        return s.out((decay * (b @ b.transpose(1, 2)) / T) @ v)
class Layer(nn.Module):
    def __init__(s, d): super().__init__(); s.norm = nn.LayerNorm(d); s.mixer = SSD(d)
    def forward(s, x): return x + s.mixer(s.norm(x))
class Mamba(nn.Module):
    def __init__(s, d=8): super().__init__(); s.emb = nn.Embedding(16, d); s.layers = nn.ModuleList([Layer(d)]); s.head = nn.Linear(d, 16)
    def forward(s, i):
        x = s.emb(i)
        for l in s.layers: x = l(x)
        return s.head(x)

def build():
    torch.manual_seed(0); model = Mamba()
    with torch.no_grad(): model.layers[0].mixer.dt.bias.fill_(2.0); model.layers[0].mixer.dt.weight.mul_(0.1)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, 16, (2, 160 if i == 3 else 16), generator=g) for i in range(6)]     # about 2.1 per position: 33 or 340
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b)[:, :-1].flatten(0, 1), b[:, 1:].flatten())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", also=["exp_overflow"], module="layers.0.mixer", phase="backward", also_phase=["forward"], op="aten.exp", also_op=["aten.mul"],
                           first_bad_step=3, loss_finite_at_first_bad_step=True))
