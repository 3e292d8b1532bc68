"""Differentiating through a chaotic map (h <- sin(W h), bounded for ever): the horizon curriculum doubles, the gradient norm grows
geometrically from step to step with a tiny rate and value clipping, until backward overflows. Forward and loss stay below 1.
True cause: exploding gradient, not the learning rate."""
import torch, torch.nn as nn

class Map(nn.Module):
    def __init__(s, d): super().__init__(); s.W = nn.Linear(d, d, bias=False)
    def forward(s, h): return torch.sin(s.W(h))
class Sim(nn.Module):
    def __init__(s): super().__init__(); s.map = Map(6); s.read = nn.Linear(6, 1)
    def forward(s, h, T):
        for _ in range(T): h = s.map(h)
        return s.read(h)

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Sim(); opt = torch.optim.SGD(model.parameters(), lr=1e-6)
    with torch.no_grad(): model.map.W.weight.copy_(torch.randn(6, 6) * 2.0)
    opt.register_step_pre_hook(lambda o, *a: nn.utils.clip_grad_value_([p for grp in o.param_groups for p in grp["params"]], 0.1))
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(4, 6, generator=g), T, torch.rand(4, 1, generator=g)) for T in (5, 8, 12, 16, 20, 24, 28, 200, 10)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0], b[1]), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="exploding_gradient", module="map.W", phase="backward", op="aten.mm", first_bad_step=7, loss_finite_at_first_bad_step=True))
