"""A gradient penalty by double backward: the critic's input gradient is exactly 0 where all of its ReLUs are off, and its norm is
written sqrt(sum(g * g)).
True cause: singular gradient of that hand-made norm at zero, in the loss function."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1)); opt = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.0, 0.9))
    with torch.no_grad(): model[0].weight.abs_().add_(0.1); model[0].bias.fill_(0.1)
    g = torch.Generator().manual_seed(1); batches = [(torch.rand(6, 2, generator=g), torch.rand(6, 2, generator=g)) for _ in range(5)]
    batches[3][0][1] = -20.0; batches[3][1][1] = -20.0                            # a corner where the critic is flat
    def loss_fn(m, b):
        real, fake = b; mid = (0.5 * real + 0.5 * fake).requires_grad_()
        (slope,) = torch.autograd.grad(m(mid).sum(), mid, create_graph=True)
        return m(fake).mean() - m(real).mean() + 10.0 * (slope.square().sum(1).sqrt() - 1.0).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="loss", phase="backward", op="aten.div", first_bad_step=3,
                           loss_finite_at_first_bad_step=True))
