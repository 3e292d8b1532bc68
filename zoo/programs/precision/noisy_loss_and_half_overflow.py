"""A noisy loss (targets drawn anew, heavy tails) and a float16 product that passes 65504 for one long document. The loss rose before by chance.
True cause: float16 overflow in the forward pass, not the learning rate."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.inp = nn.Linear(16, 32); s.pair = nn.Linear(32, 32, bias=False); s.out = nn.Linear(32, 1)
    def forward(s, x):
        h = s.inp(x); h = s.pair(h) * h
        return s.out(h).float().squeeze(-1)
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=1e-7); g = torch.Generator().manual_seed(1)
    batches = []
    for i, k in enumerate([1, 1, 2, 3, 6, 12, 40, 1200]):
        batches.append((torch.randn(8, 16, generator=g) * k, torch.randn(8, generator=g) * k * k))
    def loss_fn(m, b): return (m(b[0]) - b[1]).abs().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_forward_overflow", module="loss", phase="forward", op="aten.mul", first_bad_step=7))
