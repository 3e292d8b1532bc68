"""Binary segmentation with a focal loss; the border pixels of some masks carry the 'void' value 255 and nobody filters them.
True cause: a target outside [0, 1]: p_t = p*t + (1-p)*(1-t) leaves [0, 1], and a negative base to the power 1.5 is NaN."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn
import torch.nn.functional as F

class Seg(nn.Module):
    def __init__(s):
        super().__init__(); s.enc = nn.Conv2d(3, 8, 3, padding=1); s.norm = nn.GroupNorm(2, 8); s.dec = nn.Conv2d(8, 1, 1)
    def forward(s, x): return s.dec(F.gelu(s.norm(s.enc(x))))[:, 0]

def focal(logits, target, gamma=1.5, alpha=0.25):
    p = torch.sigmoid(logits)
    ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    p_t = p * target + (1 - p) * (1 - target)
    return ((alpha * target + (1 - alpha) * (1 - target)) * ce * (1 - p_t) ** gamma).mean()

def build():
    torch.manual_seed(1); model = Seg(); opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    g = torch.Generator().manual_seed(9); batches = []
    for i in range(7):
        mask = (torch.rand(3, 12, 12, generator=g) > 0.7).to(torch.uint8)
        if i == 4: mask[1, 0, 3:9] = 255                                  # void border of an annotated object
        batches.append(dict(image=torch.randn(3, 3, 12, 12, generator=g), mask=mask))
    def loss_fn(m, b): return focal(m(b["image"]), b["mask"].float())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="label_out_of_range", module="loss", where="loss_fn", phase="forward", op="aten.pow", first_bad_step=4))
