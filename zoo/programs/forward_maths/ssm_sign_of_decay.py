"""A state-space layer whose decay lost its sign: h = exp(+a*dt) * h + x, 20 steps are fine, a sequence of 400 overflows.
True cause: the recurrence multiplies by more than 1 at each step."""
import torch, torch.nn as nn

class Ssm(nn.Module):
    def __init__(s): super().__init__(); s.log_a = nn.Parameter(torch.full((4,), -1.0)); s.b = nn.Linear(2, 4); s.c = nn.Linear(4, 1)
    def forward(s, x):
        decay = torch.exp(torch.exp(s.log_a)); u = s.b(x); h = torch.zeros(x.shape[0], 4)
        for t in range(x.shape[1]): h = decay * h + u[:, t]
        return s.c(h).squeeze(-1)

def build():
    torch.manual_seed(0); model = Ssm(); opt = torch.optim.SGD(model.parameters(), lr=1e-12)
    with torch.no_grad(): model.b.weight.abs_()
    g = torch.Generator().manual_seed(1); batches = [(torch.rand(2, 400 if i == 2 else 20, 2, generator=g), torch.rand(2, generator=g)) for i in range(4)]
    def loss_fn(m, b): return nn.functional.l1_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="exploding_recurrence", module="loss", phase="forward", op="aten.mul", also_op=["aten.add"], first_bad_step=2))
