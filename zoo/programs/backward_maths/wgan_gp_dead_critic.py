"""WGAN-GP: gradient penalty (sqrt(sum g^2) - 1)^2 written by hand. For one interpolate every ReLU of the critic is off, its input gradient is exactly 0.
True cause: slope of sqrt at exactly 0, seen only in the outer (double) backward; the loss is finite."""
import torch, torch.nn as nn

class GAN(nn.Module):
    def __init__(s):
        super().__init__(); s.gen = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 4)); s.critic = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
    def forward(s, x): return s.critic(x)

def penalty(critic, real, fake, mix):
    x = (mix * real + (1 - mix) * fake).detach().requires_grad_(True)
    (g,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    return ((torch.sqrt(g.square().sum(-1)) - 1) ** 2).mean()

def build():
    torch.manual_seed(0); model = GAN()
    with torch.no_grad(): model.critic[0].weight[:, 3] = 1.0 + 0.2 * torch.rand(16); model.critic[0].bias.fill_(0.2)
    opt = torch.optim.Adam(model.critic.parameters(), lr=1e-3, betas=(0.0, 0.9)); g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        real = torch.randn(8, 4, generator=g) * 0.3; real[:, 3] += 2.0
        mix = torch.rand(8, 1, generator=g) * 0.4 + 0.5
        if i == 3: real[5] = torch.tensor([0.0, 0, 0, -60.0]); mix[5] = 1.0      # far on the dead side of every unit
        batches.append((real, torch.randn(8, 3, generator=g), mix))
    def loss_fn(m, b):
        fake = m.gen(b[1]).detach()
        return m(fake).mean() - m(b[0]).mean() + 10 * penalty(m.critic, b[0], fake, b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="loss", where="loss_fn", phase="backward", op="aten.sqrt", also_op=["aten.div"], first_bad_step=3, loss_finite_at_first_bad_step=True))
