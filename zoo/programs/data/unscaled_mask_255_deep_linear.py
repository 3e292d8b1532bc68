"""Segmentation with BCE-with-logits whose mask holds 255 instead of 1: the loss is negative and falls ever faster until it overflows. A sqrt(x+eps) branch is innocent."""
import torch, torch.nn as nn, torch.nn.functional as F
class Seg(nn.Module):
    def __init__(s, fix): super().__init__(); s.a = nn.Linear(4, 4, bias=False); s.b = nn.Linear(4, 4, bias=False); s.c = nn.Linear(4, 1, bias=False); s.fix = fix
    def forward(s, x):
        y = s.c(s.b(s.a(x))).squeeze(-1)
        return y if s.fix == "innocent" else y + 0.01 * torch.sqrt(x.abs().mean(-1) + 1e-6)
def build(fix=None):
    torch.manual_seed(0); model = Seg(fix); opt = torch.optim.SGD(model.parameters(), lr=0.05)
    with torch.no_grad():
        for p in model.parameters(): p.fill_(0.3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(12):
        x = 1 + 0.01 * torch.randn(8, 4, generator=g); y = torch.full((8,), 1.0 if fix == "true" else 255.0); batches.append((x, y))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: F.binary_cross_entropy_with_logits(m(b[0]), b[1]), steps=12, autocast_dtype=None,
                truth=dict(cause="label_out_of_range", module="loss", phase="forward", op="aten.binary_cross_entropy_with_logits", first_bad_step=4,
                           loss_finite_at_first_bad_step=False, also=["lr_too_high"], why="BCE target 255: unbounded below, doubly exponential growth"))
