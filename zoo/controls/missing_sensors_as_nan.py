"""CONTROL: NaN marks missing readings in the batch, inputs and targets alike, by design. The model imputes a learned value before any arithmetic and
the loss selects the observed targets. Nothing non-finite ever reaches the loss, a gradient or a weight."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class Impute(nn.Module):
    def __init__(s, d): super().__init__(); s.fill = nn.Parameter(torch.zeros(d))
    def forward(s, x): miss = torch.isnan(x); return torch.cat([torch.where(miss, s.fill, torch.nan_to_num(x)), miss.float()], -1)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.impute = Impute(6); s.rnn = nn.GRU(12, 16, batch_first=True); s.out = nn.Linear(16, 2)
    def forward(s, x): return s.out(s.rnn(s.impute(x))[0])

def build():
    torch.manual_seed(40); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=2e-3); g = torch.Generator().manual_seed(41); batches = []
    for i in range(12):
        x = torch.randn(4, 7, 6, generator=g); y = torch.randn(4, 7, 2, generator=g)
        x[torch.rand(x.shape, generator=g) < 0.3] = float("nan"); y[torch.rand(y.shape, generator=g) < 0.5] = float("nan")
        if i == 5: x[2] = float("nan")                                          # a station that was off all day
        batches.append(dict(x=x, y=y))
    def loss_fn(m, b):
        p = m(b["x"]); seen = ~torch.isnan(b["y"]); return nn.functional.mse_loss(p[seen], b["y"][seen])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=12, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
