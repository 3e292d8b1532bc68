"""CONTROL: a detector whose batch shows no object: the box loss sums an empty selection and divides by max(1, positives), log widths are taken of zero
boxes, and the logged mean IoU is NaN, a display value that nobody trains on. Loss and gradients are finite."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class Detector(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Linear(10, 24); s.obj = nn.Linear(24, 1); s.box = nn.Linear(24, 4); s.log = []
    def forward(s, x): h = nn.functional.silu(s.body(x)); return s.obj(h).squeeze(-1), s.box(h)

def iou(a, b):
    lt = torch.maximum(a[:, :2] - a[:, 2:] / 2, b[:, :2] - b[:, 2:] / 2); rb = torch.minimum(a[:, :2] + a[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2)
    inter = (rb - lt).clamp(min=0).prod(-1); return inter / (a[:, 2:].prod(-1) + b[:, 2:].prod(-1) - inter)

def build():
    torch.manual_seed(52); model = Detector(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(53); batches = []
    for i in range(10):
        has = torch.rand(2, 15, generator=g) < (0.0 if i in (3, 7) else 0.2); box = torch.rand(2, 15, 4, generator=g) * 0.5 + 0.1
        batches.append(dict(feat=torch.randn(2, 15, 10, generator=g), has=has, box=box))
    def loss_fn(m, b):
        o, p = m(b["feat"]); k = b["has"]; p, t = p[k], b["box"][k]
        size = (p[:, 2:] - torch.log(t[:, 2:])).abs().sum() + (p[:, :2] - t[:, :2]).abs().sum()
        with torch.no_grad(): m.log.append(iou(torch.cat([p[:, :2], p[:, 2:].exp()], -1), t).mean().item())
        return nn.functional.binary_cross_entropy_with_logits(o, k.float()) + size / k.sum().clamp(min=1)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=10, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
