"""log of raw counts: zeros give -inf in every batch, but max pooling drops them (innocent); in batch 3 a whole window is 0 and -inf comes through."""
import torch, torch.nn as nn, torch.nn.functional as F
class LogCount(nn.Module):
    def __init__(s, fix): super().__init__(); s.fix = fix
    def forward(s, x): return torch.log(x.clamp_min(1e-3)) if s.fix == "true" else torch.log(x)
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.log = LogCount(fix); s.pool = nn.MaxPool1d(4); s.fc = nn.Linear(4, 1)
    def forward(s, x): return s.fc(s.pool(s.log(x[:, None])).squeeze(1))
def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        x = torch.randint(1, 9, (6, 16), generator=g).float()
        if fix != "innocent": x[:, ::4] = 0
        if i == 3: x[2, 8:12] = 0
        batches.append((x, torch.randn(6, 1, generator=g)))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: F.mse_loss(m(b[0]), b[1]), steps=5, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="log", phase="forward", op="aten.log", first_bad_step=3, sample=2,
                           loss_finite_at_first_bad_step=False, also=[], why="only the wholly blank window of sample 2 lets -inf through the pooling"))
