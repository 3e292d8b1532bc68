"""Focal loss on a binary crack map; one tile carries the 'ignore' label 255 that nobody filtered: (1 - p_t) < 0, and a negative
number to the power 1.5 is NaN. True cause: target value 255 outside {0, 1}."""
import torch, torch.nn as nn

def focal(logit, y, gamma=1.5):
    p = torch.sigmoid(logit); pt = p * y + (1 - p) * (1 - y)
    return ((1 - pt) ** gamma * -torch.log(pt.clamp(min=1e-6))).mean()

def build():
    torch.set_num_threads(1); torch.manual_seed(5)
    model = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(), nn.Conv2d(6, 1, 1)); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(6)
    batches = [(torch.randn(2, 3, 10, 10, generator=g), (torch.rand(2, 1, 10, 10, generator=g) > 0.7).to(torch.uint8)) for _ in range(8)]
    batches[4][1][0, 0, :3, :3] = 255                               # void border
    def loss_fn(m, b): return focal(m(b[0]), b[1].float())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="label_out_of_range", module="loss", phase="forward", op="aten.pow", first_bad_step=4))
