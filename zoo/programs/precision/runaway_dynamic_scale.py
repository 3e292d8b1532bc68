"""A home-made dynamic loss scaler: quadruples the scale after every step whose loss is not NaN, and never looks for Inf gradients.
True cause: runaway loss scale; gradients are finite at scale 1."""
import torch, torch.nn as nn

class Scaler:
    def __init__(s): s.scale = 2.0 ** 8
    def unscale(s, o, *a):
        for grp in o.param_groups:
            for p in grp["params"]:
                if p.grad is not None: p.grad.mul_(1 / s.scale)
    def grow(s, *a): s.scale *= 4.0
class Net(nn.Module):
    def __init__(s): super().__init__(); s.conv = nn.Conv2d(3, 8, 3, padding=1); s.fc = nn.Linear(8, 4)
    def forward(s, x): return s.fc(torch.relu(s.conv(x)).mean((2, 3)))

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9); sc = Scaler()
    opt.register_step_pre_hook(sc.unscale); opt.register_step_post_hook(sc.grow)
    g = torch.Generator().manual_seed(1); batches = [{"x": torch.randn(8, 3, 6, 6, generator=g), "y": torch.randint(0, 4, (8,), generator=g)} for _ in range(16)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b["x"]).float(), b["y"]) * sc.scale
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=9, autocast_dtype=torch.float16,
                truth=dict(cause="loss_scale_misuse", module="loss", phase="backward", op="aten._to_copy", first_bad_step=6, loss_finite_at_first_bad_step=True))
