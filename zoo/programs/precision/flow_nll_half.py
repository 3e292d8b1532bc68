"""Normalizing flow in fp16: the NLL is summed over all dimensions in half precision. With progressive resizing the image grows from 8x8 to 64x64 at batch 3:
3*64*64*2 values of about 5 pass 65504. Latents and log-det are small and finite."""
import torch, torch.nn as nn
class Affine(nn.Module):
    def __init__(s, c): super().__init__(); s.log_s = nn.Parameter(torch.zeros(1, c, 1, 1)); s.t = nn.Parameter(torch.zeros(1, c, 1, 1))
    def forward(s, x): return x * s.log_s.exp() + s.t, s.log_s.expand_as(x)
class Flow(nn.Module):
    def __init__(s): super().__init__(); s.steps = nn.ModuleList([Affine(3), Affine(3)])
    def forward(s, x):
        ld = 0
        for f in s.steps: x, l = f(x); ld = ld + l
        return x, ld
def build():
    torch.manual_seed(0); model = Flow().half(); opt = torch.optim.SGD(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1)
    bs = [(2 + torch.rand(2, 3, n, n, generator=g) * 2).half() for n in (8, 8, 8, 64, 64)]
    def loss_fn(m, x):
        z, ld = m(x); nll = (0.5 * z * z - ld + 0.919).sum()        # fp16 sum, divided afterwards
        return nll / z.numel()
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="fp16_loss_overflow", module="loss", phase="forward", op="aten.sum", first_bad_step=3, loss_finite_at_first_bad_step=False, grads_finite=True,
                           also=["fp16_forward_overflow"], why="The sum of the loss over 24576 fp16 values overflows before it is divided."))
