"""Sharpness-aware training: the weights are moved along the gradient divided by its norm before the second pass. With a hinge all margins of the third batch are met;
the gradient is zero and the direction 0 / 0.
After https://github.com/google-deepmind/optax/pull/1743 (the normalisation of SAM divides by g_norm; zero gradients give NaN).
True cause: division by a norm of zero."""
import torch
from torch import nn


class MarginNet(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(d, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def hinge(model, batch):
    x, sign, margin = batch
    return torch.relu(margin - sign * model(x)).mean()


def ascent(model, loss, rho=0.05):
    params = list(model.parameters())
    grads = torch.autograd.grad(loss, params)
    norm = torch.stack([g.norm() for g in grads]).norm()
    return {name: p + rho * (g / norm) for (name, p), g in zip(model.named_parameters(), grads)}


def sharpness_aware(model, batch):
    moved = ascent(model, hinge(model, batch))
    x, sign, margin = batch
    return torch.relu(margin - sign * torch.func.functional_call(model, moved, (x,))).mean()


def build():
    torch.manual_seed(0)
    model = MarginNet()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    g = torch.Generator().manual_seed(6)
    batches = []
    for k in range(5):
        x = torch.randn(10, 4, generator=g)
        sign = torch.where(x[:, 0] > 0, 1.0, -1.0)
        batches.append((x, sign, torch.full((10,), -30.0 if k == 2 else 1.0)))      # a batch of pairs that only have to be not wrong
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=sharpness_aware, steps=5, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="forward", op="aten.div", first_bad_step=2, line="p + rho * (g / norm)",
                           why="every margin of batch 2 is met, so all gradients and their norm are zero"))
