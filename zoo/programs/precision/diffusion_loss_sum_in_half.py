"""Diffusion training under fp16 autocast: the noise-prediction error is summed over pixels in the dtype of the prediction. At high noise
levels the sum passes 65504 although no single term does.
True cause: the loss reduction in half precision; the prediction is finite and the same loss in fp32 is finite."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class Eps(nn.Module):
    def __init__(s):
        super().__init__(); s.t = nn.Linear(1, 8); s.c1 = nn.Conv2d(3, 8, 3, padding=1); s.c2 = nn.Conv2d(8, 3, 3, padding=1)
    def forward(s, x, t): return s.c2(nn.functional.silu(s.c1(x) + s.t(t[:, None])[:, :, None, None]))

def build():
    torch.manual_seed(14); model = Eps(); opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(18); batches = []
    for i in range(6):
        t = torch.rand(2, generator=g) * (1.0 if i != 4 else 0.02) + (0 if i != 4 else 4.6)
        x0 = torch.rand(2, 3, 32, 32, generator=g) * 2 - 1; n = torch.randn(2, 3, 32, 32, generator=g)
        batches.append(dict(x0=x0, noise=n, t=t))
    def loss_fn(m, b):
        sig = b["t"].exp()[:, None, None, None]                              # variance-exploding: predict sigma * eps
        pred = m((b["x0"] + sig * b["noise"]) / (1 + sig), b["t"])
        per_image = (pred - (0.06 * sig * b["noise"]).to(pred.dtype)).square().flatten(1).sum(1)
        return per_image.mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_loss_overflow", module="loss", where="loss_fn", phase="forward", op="aten.sum", first_bad_step=4,
                           grads_finite=True))
