"""WGAN with gradient penalty: sqrt(sum g^2) of the critic's input gradient. On a batch of dark (valid) images every hidden ReLU is off, the
input gradient is exactly 0, and the second backward meets d sqrt(0).
True cause: infinite slope of sqrt at zero, in the double backward; the forward and the penalty itself are finite."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class Critic(nn.Module):
    def __init__(s): super().__init__(); s.fc1 = nn.Linear(10, 6); s.fc2 = nn.Linear(6, 1)
    def forward(s, x): return s.fc2(torch.relu(s.fc1(x)))

def build():
    torch.manual_seed(9); model = Critic(); opt = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.5, 0.9))
    with torch.no_grad(): model.fc1.weight.abs_().add_(0.05); model.fc1.bias.fill_(-0.3)
    g = torch.Generator().manual_seed(13); batches = []
    for i in range(7):
        real = torch.rand(8, 10, generator=g); fake = torch.rand(8, 10, generator=g)
        if i == 4: real, fake = 0.05 * real, 0.05 * fake                    # night shots, and a generator that follows
        batches.append((real, fake, torch.rand(8, 1, generator=g)))
    def loss_fn(m, b):
        real, fake, a = b
        x = (a * real + (1 - a) * fake).requires_grad_(True)
        gx, = torch.autograd.grad(m(x).sum(), x, create_graph=True)
        gp = ((torch.sqrt((gx ** 2).sum(1)) - 1) ** 2).mean()
        return m(fake).mean() - m(real).mean() + 10 * gp
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="loss", where="loss_fn", phase="backward", op="aten.div", first_bad_step=4,
                           loss_finite_at_first_bad_step=True))
