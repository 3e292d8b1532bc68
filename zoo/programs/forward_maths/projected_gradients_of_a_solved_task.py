"""Gradient surgery for two losses: where the gradients conflict, one is projected onto the normal plane of the other, divided by the squared norm of that one.
The boundary loss is a hinge that is met exactly in the third batch: its gradient is zero.
After https://github.com/zxgcqupt/PINNs4SRA/issues/4 (the network with projected conflicting gradients produced NaN values).
True cause: division by a squared norm of zero."""
import torch
from torch import nn


class Reliability(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 24), nn.Tanh(), nn.Linear(24, 1))

    def forward(self, t):
        return self.net(t)


def flat(loss, params):
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, params, retain_graph=True)])


class Surgery:
    def __init__(self, model):
        self.params, self.losses = list(model.parameters()), None

    def before_step(self, optimizer, args, kwargs):
        pde, boundary = self.losses
        a, b = pde, boundary
        dot = a @ b
        if not dot > 0:
            a = a - dot / b.square().sum() * b
            b = b - dot / pde.square().sum() * pde
        start = 0
        for p in self.params:
            p.grad.copy_((a + b)[start:start + p.numel()].view_as(p))
            start += p.numel()


def build():
    torch.manual_seed(5)
    model = Reliability()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    surgery = Surgery(model)
    opt.register_step_pre_hook(surgery.before_step)
    g = torch.Generator().manual_seed(6)
    batches = []
    for i in range(5):
        limit = 50.0 if i == 2 else -0.5
        batches.append({"t": torch.rand(20, 2, generator=g), "edge": torch.rand(8, 2, generator=g), "limit": limit})

    def loss_fn(m, batch):
        t = batch["t"].clone().requires_grad_()
        u = m(t)
        (du,) = torch.autograd.grad(u.sum(), t, create_graph=True)
        pde = (du[:, :1] + 0.5 * u).square().mean()
        boundary = torch.relu(m(batch["edge"]) - batch["limit"]).mean()
        surgery.losses = flat(pde, surgery.params), flat(boundary, surgery.params)
        return pde + boundary

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="division_by_zero", also=("zero_times_inf",), module="optimizer", phase="optimizer", op="aten.div", first_bad_step=2,
                           loss_finite_at_first_bad_step=True, grads_finite=True, line="a = a - dot / b.square().sum() * b",
                           why="no boundary point violates the limit of the third batch, so that gradient and its norm are zero"))
