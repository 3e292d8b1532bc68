"""Scale-and-shift-invariant depth loss: the prediction is aligned by the median over the valid LiDAR pixels; one image pair has none.
True cause: a reduction over zero elements (median of an empty selection is NaN)."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class Depth(nn.Module):
    def __init__(s):
        super().__init__(); s.body = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.SiLU(), nn.Conv2d(6, 1, 3, padding=1))
    def forward(s, x): return nn.functional.softplus(s.body(x))[:, 0]

def align(d, valid):
    v = d[valid]; t = v.median(); return (d - t) / ((v - t).abs().mean() + 1e-6)

def build():
    torch.manual_seed(2); model = Depth(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(5); batches = []
    for i in range(7):
        gt = torch.rand(2, 10, 10, generator=g) * 60; gt[torch.rand(2, 10, 10, generator=g) < 0.8] = 0.0
        if i == 3: gt.clamp_(max=0.0)                                     # night sequence: the sensor returned nothing
        batches.append((torch.rand(2, 3, 10, 10, generator=g), gt))
    def loss_fn(m, b):
        pred, (_, gt) = m(b[0]), b
        valid = gt > 0
        err = (align(pred, valid) - align(gt, valid)).abs()
        return (err * valid).sum() / gt.numel() + 1e-4 * pred.square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="empty_reduction", module="loss", where="loss_fn", phase="forward", op="aten.median", first_bad_step=3))
