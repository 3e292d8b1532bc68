"""WGAN-GP with its own norm: the critic is flat at a repeated image, the norm of its gradient is 0, and the slope of sqrt there is infinite.
The critic's loss rises to 10 before, as it does.
True cause: singular gradient at zero in the penalty; the learning rate is innocent."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)); opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(6, 4, generator=g), k) for k in (0.2, 0.5, 1.0, 3.0, 10.0, 10.0)]
    batches[5][0][3] = 0.0
    with torch.no_grad(): model[0].bias.fill_(-0.3); model[0].weight.mul_(2.0)
    def loss_fn(m, b):
        x = b[0].clone().requires_grad_()
        (grad,) = torch.autograd.grad(m(x).sum(), x, create_graph=True)
        penalty = (grad.square().sum(-1).sqrt() - 1).square().mean()
        return penalty + b[1]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="loss", phase="backward", op="aten.div", first_bad_step=5,
                           never_said=["the loss grew until it overflowed", "stability limit"]))
