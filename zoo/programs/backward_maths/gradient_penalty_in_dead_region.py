"""WGAN-GP: for inputs in the dead region of the critic the input gradient is exactly 0, and sqrt(sum g^2) has infinite slope in double backward."""
import torch, torch.nn as nn, torch.nn.functional as F
class Penalty(nn.Module):
    def __init__(s, eps): super().__init__(); s.eps = eps
    def forward(s, y, x):
        g, = torch.autograd.grad(y.sum(), x, create_graph=True)
        return (torch.sqrt((g * g).sum(-1) + s.eps) - 1).pow(2).mean()
class Critic(nn.Module):
    def __init__(s, fix): super().__init__(); s.a = nn.Linear(5, 16); s.b = nn.Linear(16, 1); s.gp = Penalty(1e-8 if fix == "true" else 0.)
    def forward(s, x): return s.b(torch.relu(s.a(x)))
def build(fix=None):
    torch.manual_seed(0); model = Critic(fix); opt = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.0, 0.9))
    with torch.no_grad(): model.a.weight.abs_(); model.a.bias.fill_(0.1)
    g = torch.Generator().manual_seed(1); batches = [torch.rand(8, 5, generator=g) for _ in range(6)]; batches[4][2] = -5.0
    def loss_fn(m, b):
        x = b.clone().requires_grad_(); y = m(x)
        adv = y.mean() if fix == "innocent" else F.softplus(y).mean() + torch.log(torch.sigmoid(y) + 1e-12).mean()
        return adv + 10 * m.gp(y, x)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="gp", phase="backward", op="aten.div", first_bad_step=4,
                           loss_finite_at_first_bad_step=True, also=[], why="norm of an exactly zero input gradient; log and softplus are safe"))
