"""Heat-equation surrogate in pure half precision: the loss is (pred - target)^2 summed over a finer grid from step 4 on, all in fp16.
Every element is small; the sum exceeds 65504. True cause: the loss is reduced in half precision."""
import torch, torch.nn as nn

class Surrogate(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Conv2d(1, 6, 3, padding=1); s.b = nn.Conv2d(6, 1, 3, padding=1)
    def forward(s, u): return u + s.b(torch.tanh(s.a(u)))

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Surrogate().half(); opt = torch.optim.SGD(model.parameters(), lr=1e-7)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(7):
        n = 8 if i < 4 else 48; u = torch.randn(8, 1, n, n, generator=g) * 2; batches.append((u.half(), (u.roll(1, -1) * 0.9).half()))
    def loss_fn(m, b): return (m(b[0]) - b[1]).square().sum()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="fp16_loss_overflow", module="loss", phase="forward", op="aten.sum", first_bad_step=4, grads_finite=True))
