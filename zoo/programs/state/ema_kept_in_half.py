"""An exponential moving average of the weights is kept in fp16 to save memory, as a submodule. One weight is a frequency in hertz and climbs
above 65504: the model is fine, its average is Inf from then on.
True cause: the average is poisoned (the cast to half overflows in the hook after the step)."""
import copy, torch, torch.nn as nn

class Oscillators(nn.Module):
    def __init__(s): super().__init__(); s.hz = nn.Parameter(torch.tensor([440.0, 20000.0, 61000.0])); s.gain = nn.Parameter(torch.ones(3))
    def forward(s, t): return s.gain * (s.hz * 1e-4 - t)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.net = Oscillators(); s.ema = copy.deepcopy(s.net).half().requires_grad_(False)
    def forward(s, t): return s.net(t)

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam([{"params": [model.net.hz], "lr": 1000.0}, {"params": [model.net.gain], "lr": 1e-3}])
    @torch.no_grad()
    def average(o, *a):
        for e, p in zip(model.ema.parameters(), model.net.parameters()): e.lerp_(p.half(), 0.1)
    opt.register_step_post_hook(average); g = torch.Generator().manual_seed(1); batches = [9.0 + torch.rand(4, 3, generator=g) for _ in range(8)]
    def loss_fn(m, b): return m(b).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="ema_poisoned", module="optimizer", phase="optimizer", op="aten._to_copy", first_bad_step=4,
                           loss_finite_at_first_bad_step=True, grads_finite=True, poisoned_state=["ema.hz"]))
