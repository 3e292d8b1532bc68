"""A hand-written decay is subtracted from the gradient instead of added, so the weights grow sixfold with every step; the gradients are innocent.
After https://github.com/andersbll/deeppy/issues/17 (step -= penalty: the weights explode).
True cause: a steady blow-up of the weights that is not due to the rate."""
import torch
from torch import nn

DECAY, LR = 50.0, 0.1


def build():
    torch.manual_seed(4)
    net = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 10), nn.Tanh(), nn.Linear(10, 1))
    opt = torch.optim.SGD(net.parameters(), lr=LR)

    def penalise(optimizer, *_):
        for p in net.parameters():
            p.grad.sub_(DECAY * p.detach())

    opt.register_step_pre_hook(penalise)
    g = torch.Generator().manual_seed(5)
    data = [(x, torch.sign(x[:, :1])) for x in torch.randn(8, 16, 5, generator=g)]

    def loss_fn(m, b):
        out = m(b[0])
        return nn.functional.softplus(-out * b[1]).mean() + 1e-3 * out.square().mean()

    return dict(model=net, optimizer=opt, batches=data, loss_fn=loss_fn, steps=60, autocast_dtype=None,
                truth=dict(cause="exploding_gradient", also=("lr_too_high",), module="loss", phase="forward", op="aten.pow", first_bad_step=25, line="1e-3 * out.square().mean()"))
