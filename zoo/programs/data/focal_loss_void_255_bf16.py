"""Binary segmentation with a focal loss, bf16 autocast. Batch 3 holds the void label 255 at a few pixels: p_t = p*t + (1-p)*(1-t) leaves [0, 1].
True cause: labels out of range; (1 - p_t)^1.5 is a power of a negative number (about -220). The clamp protects the log only."""
import torch, torch.nn as nn

class Seg(nn.Module):
    def __init__(s):
        super().__init__(); s.enc = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU()); s.dec = nn.Conv2d(8, 1, 1)
        nn.init.constant_(s.dec.bias, 3.0); s.dec.weight.data.mul_(0.2)   # foreground is the common class
    def forward(s, x): return s.dec(s.enc(x)).squeeze(1)

def focal(logits, t, gamma=1.5):
    p = logits.float().sigmoid()
    pt = p * t + (1 - p) * (1 - t)
    w = (1 - pt) ** gamma
    return -(w * pt.clamp_min(1e-6).log()).mean()

def build():
    torch.manual_seed(0); model = Seg(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [dict(image=torch.randn(2, 3, 8, 8, generator=g), mask=(torch.rand(2, 8, 8, generator=g) < 0.9).float()) for _ in range(6)]
    batches[3]["mask"][1, 6:, 6:] = 255
    def loss_fn(m, b): return focal(m(b["image"]), b["mask"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=torch.bfloat16,
                truth=dict(cause="label_out_of_range", module="loss", where="loss_fn", phase="forward", op="aten.pow", first_bad_step=3))
