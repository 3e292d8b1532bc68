"""A diffusion UNet's mid attention under fp16 autocast: queries and keys are scaled after the product, q @ k passes 65504.
Threads: Stable Diffusion 2 in fp16 (upcast attention).
True cause: float16 overflow of the attention scores."""
import torch, torch.nn as nn

class MidAttention(nn.Module):
    def __init__(s, c=32): super().__init__(); s.norm = nn.GroupNorm(4, c); s.q = nn.Conv2d(c, c, 1); s.k = nn.Conv2d(c, c, 1); s.v = nn.Conv2d(c, c, 1); s.o = nn.Conv2d(c, c, 1)
    def forward(s, x):
        b, c, h, w = x.shape; y = s.norm(x); q, k, v = (f(y).flatten(2) for f in (s.q, s.k, s.v))
        score = torch.bmm(q.transpose(1, 2), k) * c ** -0.5
        return x + s.o(torch.bmm(v, score.softmax(-1).transpose(1, 2)).view(b, c, h, w))
class UNet(nn.Module):
    def __init__(s): super().__init__(); s.down = nn.Conv2d(3, 32, 3, 2, 1); s.mid = MidAttention(); s.up = nn.ConvTranspose2d(32, 3, 2, 2)
    def forward(s, x): return s.up(s.mid(torch.nn.functional.silu(s.down(x))))

def build():
    torch.manual_seed(0); model = UNet(); opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with torch.no_grad(): model.mid.q.bias.fill_(100.0); model.mid.k.bias.fill_(100.0)      # what long training in bf16 left
    g = torch.Generator().manual_seed(1); batches = [torch.randn(2, 3, 8, 8, generator=g) for _ in range(3)]
    def loss_fn(m, x): return nn.functional.mse_loss(m(x).float(), x)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_forward_overflow", module="mid", phase="forward", op="aten.bmm", first_bad_step=0))
