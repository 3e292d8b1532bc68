"""Bayesian personalised ranking: -log(sigmoid(positive - negative)) written as two calls; one pair is far apart.
True cause: log of zero; logsigmoid is the remedy."""
import torch, torch.nn as nn

class BPR(nn.Module):
    def __init__(s): super().__init__(); s.u = nn.Embedding(10, 8); s.i = nn.Embedding(30, 8)
    def forward(s, u, i): return (s.u(u) * s.i(i)).sum(-1)
def build():
    torch.manual_seed(0); model = BPR(); opt = torch.optim.Adam(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1)
    batches = [(torch.randint(0, 10, (12,), generator=g), torch.randint(0, 30, (12,), generator=g), torch.randint(0, 30, (12,), generator=g)) for _ in range(6)]
    with torch.no_grad(): model.u.weight[7] = 20.0; model.i.weight[13] = -10.0
    for b in batches: b[0][b[0] == 7] = 3
    batches[4][0][5] = 7; batches[4][1][5] = 13; batches[4][2][5] = 2
    def loss_fn(m, b): return -torch.log(torch.sigmoid(m(b[0], b[1]) - m(b[0], b[2]))).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="loss", phase="forward", op="aten.log", first_bad_step=4))
