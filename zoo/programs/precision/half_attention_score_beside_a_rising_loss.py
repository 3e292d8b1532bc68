"""float16 autocast, healthy rate, a loss that rises since the batches get harder (curriculum), and an attention score that passes 65504.
A tenth of the rate happens to be finite as well. True cause: float16 forward overflow."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.q = nn.Linear(12, 12, bias=False); s.v = nn.Linear(12, 12)
    def forward(s, x):
        q = s.q(x); scores = q @ q.transpose(-1, -2)
        return (scores / 12 ** 0.5).float().softmax(-1) @ s.v(x).float()
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=2e-6); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(2, 5, 12, generator=g) * k for k in (1, 2, 4, 9, 20, 45, 110, 330)]
    def loss_fn(m, x): return (m(x) - x).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_forward_overflow", module="loss", phase="forward", op="aten.bmm", first_bad_step=6))
