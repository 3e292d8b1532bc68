"""Focal loss on a segmentation mask that marks void pixels with 255."""
import torch, torch.nn as nn, torch.nn.functional as F

class Seg(nn.Module):
    def __init__(s): super().__init__(); s.c = nn.Conv2d(1, 4, 3, padding=1); s.o = nn.Conv2d(4, 1, 1)
    def forward(s, x): return s.o(F.relu(s.c(x))).squeeze(1)
def focal(logits, y, gamma=1.5):
    p = torch.sigmoid(logits)
    pt = p * y + (1 - p) * (1 - y)
    modulator = (1 - pt) ** gamma
    return (modulator * F.binary_cross_entropy_with_logits(logits, y, reduction="none")).mean()
def build():
    torch.manual_seed(0); model = Seg(); model.o.bias.data.fill_(1.0); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(2, 1, 5, 5, generator=g), torch.randint(0, 2, (2, 5, 5), generator=g).float()) for _ in range(4)]; batches[2][1][1, 0, :3] = 255.0
    def loss_fn(m, b): return focal(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="label_out_of_range", where="loss_fn", module="", phase="forward", op="aten.pow", first_bad_step=2, line="modulator = (1 - pt) ** gamma"))
