"""Diffusion U-Net under fp16 autocast; the loss is a sum of squares per image, taken in the prediction's dtype. Batch 4 is from the high-resolution bucket.
True cause: the sum over 4096 elements of about 36 is 147000 > 65504 in fp16; prediction and squares are finite, fp32 is fine."""
import torch, torch.nn as nn

class Res(nn.Module):
    def __init__(s, i, o): super().__init__(); s.n = nn.GroupNorm(2, i); s.c = nn.Conv2d(i, o, 3, padding=1); s.sk = nn.Conv2d(i, o, 1); s.t = nn.Linear(8, o)
    def forward(s, x, t): return s.sk(x) + s.c(torch.nn.functional.silu(s.n(x))) + s.t(t)[:, :, None, None]
class UNet(nn.Module):
    def __init__(s, c=4):
        super().__init__(); s.temb = nn.Sequential(nn.Linear(1, 8), nn.SiLU()); s.down = Res(c, 8); s.mid = Res(8, 8); s.up = Res(16, c)
    def forward(s, x, t):
        e = s.temb(t[:, None]); a = s.down(x, e); b = s.mid(nn.functional.avg_pool2d(a, 2), e)
        return s.up(torch.cat([a, nn.functional.interpolate(b, scale_factor=2)], 1), e)

def build():
    torch.manual_seed(0); model = UNet(); opt = torch.optim.AdamW(model.parameters(), lr=1e-4); rng = torch.Generator().manual_seed(5)
    g = torch.Generator().manual_seed(1)
    batches = [torch.randn(2, 4, r, r, generator=g) for r in (8, 8, 8, 8, 32, 8)]
    def sq_error(pred, target): return (pred - target.to(pred.dtype)).square().flatten(1).sum(1)
    def loss_fn(m, x):
        t = torch.rand(len(x), generator=rng) * 0.5 + 0.5; noise = 6.0 * torch.randn(x.shape, generator=rng)     # sigma_max = 6
        return sq_error(m((x + t[:, None, None, None] * noise) / 6.0, t), noise).float().mean() / 1000
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_loss_overflow", also=["fp16_forward_overflow"], module="loss", where="loss_fn", phase="forward", op="aten.sum", first_bad_step=4, grads_finite=True))
