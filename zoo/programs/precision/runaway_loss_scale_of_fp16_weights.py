"""Home-made loss scaling for fp16 weights: the scale is multiplied by 64 after EVERY step and never backs off; at 2**21 the logits' gradient passes 65504. Unscaled gradients are ordinary."""
import torch, torch.nn as nn
class Scaler:
    def __init__(self, opt, init=8.0):
        self.s = init; opt.register_step_pre_hook(self.unscale); opt.register_step_post_hook(self.grow)
    def unscale(self, opt, *a):
        for gr in opt.param_groups:
            for p in gr["params"]:
                if p.grad is not None: p.grad.div_(self.s)
    def grow(self, *a): self.s *= 64
def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 4)).half(); opt = torch.optim.SGD(model.parameters(), lr=0.01); sc = Scaler(opt)
    g = torch.Generator().manual_seed(1); bs = [(torch.randn(8, 6, generator=g).half(), torch.randint(0, 4, (8,), generator=g)) for _ in range(6)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]).float(), b[1]) * sc.s
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="loss_scale_misuse", module="loss", phase="backward", op="aten._to_copy", first_bad_step=3, loss_finite_at_first_bad_step=True,
                           why="With scale 1 every gradient is small; the scale of 2**21 pushes the fp16 gradient beyond 65504."))
