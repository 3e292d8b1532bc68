"""A style loss under fp16 autocast: the Gram matrix sums feature products over all positions by einsum, and divides by their number only afterwards.
True cause: fp16 overflow of the einsum once a bright texture comes (batch 2); dividing before, or fp32, is finite."""
import torch, torch.nn as nn

class Gram(nn.Module):
    def forward(s, f): return torch.einsum("bchw,bdhw->bcd", f, f) / (f.shape[2] * f.shape[3])
class Style(nn.Module):
    def __init__(s): super().__init__(); s.conv = nn.Conv2d(3, 6, 3, padding=1); s.gram = Gram()
    def forward(s, x): return s.gram(s.conv(x).relu())

def build():
    torch.manual_seed(0); model = Style(); opt = torch.optim.RAdam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [dict(x=torch.rand(2, 3, 20, 20, generator=g) * (200.0 if i == 2 else 1.0), style=torch.rand(2, 6, 6, generator=g)) for i in range(4)]
    def loss_fn(m, b): return nn.functional.l1_loss(m(b["x"]).float(), b["style"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_forward_overflow", module="gram", phase="forward", op="aten.bmm", first_bad_step=2, grads_finite=True))
