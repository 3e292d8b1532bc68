"""CONTROL: multi-task training; in batches 3 and 6 a task has no valid target and its guarded mean (sum / max(count, 1)) is exactly 0. Void pixels are 255 and are masked first. sqrt has its eps inside."""
import torch, torch.nn as nn

class MT(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.ReLU()); s.depth = nn.Conv2d(6, 1, 1); s.seg = nn.Conv2d(6, 3, 1)
    def forward(s, x): h = s.enc(x); return s.depth(h)[:, 0], s.seg(h)
def build():
    torch.manual_seed(0); model = MT(); opt = torch.optim.AdamW(model.parameters(), lr=2e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(8):
        d = torch.rand(2, 6, 6, generator=g) * 5 + 0.5; d[torch.rand(2, 6, 6, generator=g) < 0.4] = 0.0; y = torch.randint(0, 3, (2, 6, 6), generator=g); y[:, :2] = 255
        if i == 3: d.zero_()
        if i == 6: y.fill_(255)
        batches.append(dict(x=torch.randn(2, 1, 6, 6, generator=g), depth=d, seg=y))
    def loss_fn(m, b):
        d, s = m(b["x"]); ok = b["depth"] > 0
        safe = torch.where(ok, b["depth"], torch.ones(()))                       # log of 1 where there is no depth
        ld = ((d - safe.log()).pow(2) * ok).sum() / ok.sum().clamp(min=1)
        ls = nn.functional.cross_entropy(s, b["seg"], ignore_index=255, reduction="sum") / (b["seg"] != 255).sum().clamp(min=1)
        return (ld + 1e-8).sqrt() + ls
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
