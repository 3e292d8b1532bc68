"""Poisson likelihood with lgamma(count + 1); one count is a missing value coded as -1."""
import torch, torch.nn as nn, torch.nn.functional as F

class Rate(nn.Module):
    def __init__(s): super().__init__(); s.net = nn.Linear(4, 1)
    def forward(s, x): return s.net(x).squeeze(-1)
def build():
    torch.manual_seed(0); model = Rate(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 4, generator=g), torch.randint(0, 6, (6,), generator=g).float()) for _ in range(4)]; batches[2][1][4] = -1.0
    def loss_fn(m, b):
        log_rate = m(b[0])
        return (log_rate.exp() - b[1] * log_rate + torch.lgamma(b[1] + 1)).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="label_out_of_range", where="loss_fn", module="", phase="forward", op="aten.lgamma", first_bad_step=2, line="torch.lgamma(b[1] + 1)"))
