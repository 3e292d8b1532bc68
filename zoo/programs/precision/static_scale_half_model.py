"""A model in fp16 with a static loss scale of 2^20, multiplied in by hand; a hook of the optimizer divides the gradients again before the
step. The scaled gradient does not fit into fp16.
True cause: the loss scale; with scale 1 every gradient is finite."""
import torch, torch.nn as nn

SCALE = 2.0 ** 20
def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).half(); opt = torch.optim.SGD(model.parameters(), lr=0.01)
    def unscale(o, *a):
        for p in model.parameters(): p.grad.div_(SCALE)
    opt.register_step_pre_hook(unscale); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 8, generator=g).half(), torch.randint(0, 4, (8,), generator=g)) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]).float(), b[1]) * SCALE
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="loss_scale_misuse", module="loss", phase="backward", op="aten._to_copy", first_bad_step=0,
                           loss_finite_at_first_bad_step=True))
