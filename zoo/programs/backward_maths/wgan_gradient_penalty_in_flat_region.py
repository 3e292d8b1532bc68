"""WGAN-GP: the penalty takes sqrt(sum(grad^2)) without an epsilon. The critic is a hinge network; for a batch of real and fake
samples that lie in its flat region (all units off) the input gradient is exactly 0, and sqrt has no slope there.
True cause: singular gradient of sqrt at zero, reached in the double backward; loss and forward are finite."""
import torch
import torch.nn as nn


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 16), nn.Linear(16, 1)

    def forward(self, x):
        return self.b(torch.relu(self.a(x))).squeeze(-1)


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.gen = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 4), nn.Sigmoid())
        self.critic = Critic()


def gradient_penalty(critic, real, fake, mix):
    x = (mix * real + (1 - mix) * fake).requires_grad_(True)
    (grad,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    length = torch.sqrt((grad ** 2).sum(dim=1))
    return ((length - 1) ** 2).mean()


def build():
    torch.manual_seed(0)
    model = Gan()
    with torch.no_grad():                         # the critic is dead where every feature is in [0, 1] and the first is below 0.5
        model.critic.a.weight.abs_()
        model.critic.a.weight[:, 1:] *= 0.01
        model.critic.a.weight[:, 0] = torch.linspace(1.0, 2.0, 16)
        model.critic.a.bias.fill_(-1.2)
    opt = torch.optim.Adam(model.critic.parameters(), lr=1e-4, betas=(0.0, 0.9))
    g = torch.Generator().manual_seed(2)
    batches = []
    for i in range(5):
        real = torch.rand(8, 4, generator=g)
        real[:, 0] = 3.0 + real[:, 0]
        if i == 2:
            real[6, 0] = 0.1                       # an ordinary sample of a rare mode
        batches.append((real, torch.randn(8, 3, generator=g), torch.rand(8, 1, generator=g) * 0.3 + 0.6))

    def loss_fn(m, b):
        real, z, mix = b
        fake = m.gen(z).detach()
        return m.critic(fake).mean() - m.critic(real).mean() + 10 * gradient_penalty(m.critic, real, fake, mix)

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="loss", phase="backward", op="aten.div", first_bad_step=2,
                           node="SqrtBackward0", loss_finite_at_first_bad_step=True))
