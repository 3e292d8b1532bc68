"""CONTROL: targets hold NaN for "not measured" in every batch: one term indexes them out, one uses nanmean of a detached baseline, one masks BEFORE subtracting. One batch has an inf in a field nobody reads."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(8):
        y = torch.randn(6, 2, generator=g); y[torch.rand(6, 2, generator=g) < 0.3] = float("nan"); y[0, 0] = 1.0; y[1] = float("nan")
        batches.append(dict(x=torch.randn(6, 4, generator=g), y=y, raw=torch.full((6,), float("inf") if i == 4 else 0.0)))
    def loss_fn(m, b):
        p = m(b["x"]); y = b["y"]; ok = torch.isfinite(y); base = torch.nanmean(y).detach()
        return {"idx": ((p[ok] - y[ok]) ** 2).mean(), "mask": ((p - torch.where(ok, y, p.detach())) ** 2).sum() / ok.sum(), "base": 0.1 * (p.mean() - base) ** 2}
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
