"""Focal loss in bf16 on probabilities clamped to [eps, 1 - eps] with eps = 1e-3: in bf16 1 - 1e-3 is 1, so the clamp does nothing at the
upper end and log(1 - p) meets p = 1.
True cause: 1 - eps rounds to 1 in the operation's type; in fp32 the same loss is finite."""
import torch, torch.nn as nn

class Focal(nn.Module):
    def forward(s, logits, y):
        p = logits.sigmoid().clamp(1e-3, 1 - 1e-3)
        return -(y * (1 - p) ** 2 * p.log() + (1 - y) * p ** 2 * torch.log(1 - p)).mean()
class Net(nn.Module):
    def __init__(s): super().__init__(); s.lin = nn.Linear(6, 1); s.focal = Focal()
    def forward(s, x, y): return s.focal(s.lin(x).squeeze(-1), y)

def build():
    torch.manual_seed(0); model = Net().bfloat16(); opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 6, generator=g).bfloat16(), torch.randint(0, 2, (8,), generator=g).bfloat16()) for _ in range(4)]
    with torch.no_grad(): batches[2][0][3] = 20.0 * model.lin.weight[0].sign()    # surely positive, but labelled negative
    batches[2][1][3] = 0.0
    def loss_fn(m, b): return m(*b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="eps_underflow_half", module="focal", phase="forward", op="aten.log", first_bad_step=2))
