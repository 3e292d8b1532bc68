"""CONTROL: clinical time series: missing measurements are NaN in the batch by design; the model imputes them with where(isnan) and the loss reads observed values only."""
import torch, torch.nn as nn

class Imputer(nn.Module):
    def __init__(s): super().__init__(); s.default = nn.Parameter(torch.zeros(5)); s.rnn = nn.GRU(10, 16, batch_first=True); s.out = nn.Linear(16, 5)
    def forward(s, x):
        seen = ~torch.isnan(x); x = torch.where(seen, x, s.default)
        return s.out(s.rnn(torch.cat([x, seen.float()], -1))[0])

def build():
    torch.manual_seed(0); model = Imputer(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for _ in range(6):
        x = torch.randn(3, 7, 5, generator=g); x[torch.rand(3, 7, 5, generator=g) < 0.3] = float("nan"); batches.append({"values": x})
    def loss_fn(m, b):
        p = m(b["values"])[:, :-1]; y = b["values"][:, 1:]; seen = ~torch.isnan(y)
        return ((p[seen] - y[seen]) ** 2).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
