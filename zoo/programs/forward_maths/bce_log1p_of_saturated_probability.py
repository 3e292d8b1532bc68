"""Binary cross entropy by hand with log1p(-p), p saturated at 1."""
import torch, torch.nn as nn, torch.nn.functional as F

class Clf(nn.Module):
    def __init__(s): super().__init__(); s.net = nn.Linear(4, 1)
    def forward(s, x): return torch.sigmoid(s.net(x)).squeeze(-1)
def build():
    torch.manual_seed(0); model = Clf(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model.net.weight.fill_(1.0)
    batches = [(torch.randn(5, 4, generator=g), torch.randint(0, 2, (5,), generator=g).float()) for _ in range(4)]; batches[2][0][1] = 12.0; batches[2][1][1] = 1.0
    def loss_fn(m, b):
        p, y = m(b[0]), b[1]
        return -(y * torch.log(p) + (1 - y) * torch.log1p(-p)).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="log_of_zero", where="loss_fn", module="", phase="forward", op="aten.log1p", first_bad_step=2, line="torch.log1p(-p)"))
