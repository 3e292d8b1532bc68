"""A geometric mixture: log(p) * sqrt(q) inside a where. At the bad places p is exactly 1, so log(p) is 0, and q is 0. Those places are selected.
True cause: the slope of sqrt at 0; not an unselected branch."""
import torch, torch.nn as nn

class Mix(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Linear(4, 6); s.b = nn.Linear(4, 6)
    def forward(s, x): return torch.sigmoid(s.a(x)), s.b(x).square()
def build():
    torch.manual_seed(0); model = Mix(); opt = torch.optim.SGD(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 4, generator=g), torch.rand(8, 6, generator=g) > 0.1) for _ in range(4)]
    for x, keep in batches: keep[:, :5] = True
    with torch.no_grad(): model.b.bias.fill_(2.0); model.b.bias[1] = 0.0; model.b.weight[1] = 0.0; model.a.bias[1] = 60.0
    def loss_fn(m, b):
        p, q = m(b[0])
        score = torch.where(b[1], torch.log(p) * torch.sqrt(q), torch.zeros_like(p))
        return score.square().mean() - score.mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="loss", phase="backward", op="aten.div", first_bad_step=0,
                           never_said=["not selected"]))
