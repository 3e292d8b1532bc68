"""WGAN-GP: penalty (sqrt(sum g^2) - 1)^2 on the critic's input gradient. For condition 5 (first in batch 2) all hidden units are saturated (Hardtanh),
so g is exactly 0 and the sqrt has an infinite slope. Loss is about 1 and finite; only the double backward is NaN."""
import torch, torch.nn as nn

class Critic(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Linear(4, 8); s.cond = nn.Embedding(6, 8); s.act = nn.Hardtanh(); s.b = nn.Linear(8, 1)
    def forward(s, x, c): return s.b(s.act(s.a(x) + s.cond(c)))

def build():
    torch.manual_seed(0); model = Critic(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model.cond.weight.mul_(0.05); model.cond.weight[5] = 60.0; model.a.weight.mul_(0.3)
    batches = []
    for i in range(5):
        c = torch.randint(0, 5, (6,), generator=g)
        if i == 2: c[1] = 5
        batches.append((torch.randn(6, 4, generator=g), torch.randn(6, 4, generator=g), c))
    def loss_fn(m, b):
        real, fake, c = b
        x = (0.5 * real + 0.5 * fake).requires_grad_(True)
        gx, = torch.autograd.grad(m(x, c).sum(), x, create_graph=True)
        n = torch.sqrt((gx ** 2).sum(1))
        return {"w": m(fake, c).mean() - m(real, c).mean(), "gp": ((n - 1) ** 2).mean()}
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="loss", where="loss_fn", phase="backward", op="aten.sqrt", also_op=["aten.div"], first_bad_step=2,
                           loss_finite_at_first_bad_step=True,
                           **{"not": ["lr_too_high", "where_unselected_branch", "exploding_gradient", "division_by_zero", "bad_input_data"]}))
