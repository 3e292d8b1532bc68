"""Relativistic GAN: the log of a sigmoid of a difference that is far below zero."""
import torch, torch.nn as nn, torch.nn.functional as F

class D(nn.Module):
    def __init__(s): super().__init__(); s.net = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    def forward(s, x): return s.net(x).squeeze(-1)
def build():
    torch.manual_seed(0); model = D(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 4, generator=g), torch.randn(8, 4, generator=g)) for _ in range(4)]; batches[3] = (batches[3][0] * 400, batches[3][1] * 400)
    def loss_fn(m, b):
        real, fake = m(b[0]), m(b[1])
        p = torch.sigmoid(real - fake)
        return -torch.log(p).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="log_of_zero", where="loss_fn", module="", phase="forward", op="aten.log", first_bad_step=3, line="-torch.log(p).mean()"))
