"""Recommender with a hand-written sigmoid 1/(1+exp(-x)): exp(150) = inf, 1/inf = 0 (erased), log(0) = -inf.
True cause: exp overflow in the link function; the log only shows it. A stable logsigmoid has no trouble with this log-odds."""
import torch, torch.nn as nn

class Link(nn.Module):
    def forward(s, z): return 1.0 / (1.0 + torch.exp(-z))
class Tower(nn.Module):
    def __init__(s, n): super().__init__(); s.emb = nn.Embedding(n, 6); s.bias = nn.Embedding(n, 1)
    def forward(s, i): return s.emb(i), s.bias(i).squeeze(-1)
class CTR(nn.Module):
    def __init__(s):
        super().__init__(); s.user = Tower(10); s.item = Tower(14); s.link = Link(); s.register_buffer("prior", torch.zeros(14))
    def forward(s, u, i):
        eu, bu = s.user(u); ei, bi = s.item(i)
        return s.link((eu * ei).sum(-1) * 0.3 + bu + bi + s.prior[i])

def build():
    torch.manual_seed(0); model = CTR(); model.prior[13] = -150.0           # log-odds correction of a never-clicked item
    opt = torch.optim.Adagrad(model.parameters(), lr=0.02); g = torch.Generator().manual_seed(1); batches = []
    for k in range(9):
        u, i, y = torch.randint(0, 10, (16,), generator=g), torch.randint(0, 13, (16,), generator=g), torch.randint(0, 2, (16,), generator=g).float()
        if k == 6: i[11] = 13; y[11] = 1.0                                   # ... somebody clicked it
        batches.append((u, i, y))
    def nll(p, y): return -torch.where(y > 0, p.log(), (1 - p).clamp_min(1e-7).log()).mean()
    def loss_fn(m, b): return nll(m(b[0], b[1]), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="link", phase="forward", op="aten.exp", first_bad_step=6))
