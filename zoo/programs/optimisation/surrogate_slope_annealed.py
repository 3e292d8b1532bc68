"""A spiking network: the forward is a step function, the backward a surrogate of slope k, and k is sharpened after each step (2 ** t ** 3), through six layers.
True cause: an exploding gradient, from 1 by way of 1e12 to overflow; the loss and all spikes stay finite and the rate is tiny."""
import torch, torch.nn as nn

class Surrogate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v, k): ctx.save_for_backward(v); ctx.k = k; return (v > 0).float()
    @staticmethod
    def backward(ctx, grad): (v,) = ctx.saved_tensors; return grad * (ctx.k * torch.exp(-v.abs())), None
class Layer(nn.Module):
    def __init__(s, i, o): super().__init__(); s.fc = nn.Linear(i, o); s.t = 0
    def forward(s, x): return Surrogate.apply(s.fc(x), 2.0 ** s.t ** 3)

def build():
    torch.manual_seed(0); model = nn.Sequential(*[Layer(8, 8) for _ in range(6)], nn.Linear(8, 2))
    opt = torch.optim.Rprop(model.parameters(), lr=1e-7, step_sizes=(1e-9, 1e-6))
    def sharpen(o, *a):
        for layer in list(model)[:-1]: layer.t += 1
    opt.register_step_post_hook(sharpen); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 8, generator=g), torch.randint(0, 2, (6,), generator=g)) for _ in range(5)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="exploding_gradient", module="0", phase="backward", op="aten.mul", first_bad_step=3,
                           loss_finite_at_first_bad_step=True))
