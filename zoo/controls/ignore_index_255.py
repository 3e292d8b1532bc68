"""CONTROL: segmentation labels with 255 as ignore_index (void pixels), and targets of -100 in another head; no row is empty."""
import torch, torch.nn as nn
class Seg(nn.Module):
    def __init__(s): super().__init__(); s.c = nn.Conv2d(3, 8, 3, padding=1); s.o = nn.Conv2d(8, 4, 1); s.t = nn.Linear(8, 5)
    def forward(s, x): h = s.c(x).relu(); return s.o(h), s.t(h.mean((2, 3)))
def build():
    torch.manual_seed(0); model = Seg(); opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9); g = torch.Generator().manual_seed(1); bs = []
    for _ in range(8):
        y = torch.randint(0, 4, (2, 6, 6), generator=g); y[:, :, 4:] = 255; c = torch.tensor([3, -100]); bs.append((torch.randn(2, 3, 6, 6, generator=g), y, c))
    def loss_fn(m, b):
        a, t = m(b[0]); return nn.functional.cross_entropy(a, b[1], ignore_index=255) + nn.functional.cross_entropy(t, b[2])
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=8, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None, why="255 and -100 are ignored by the loss."))
