"""Segmentation with BCE-with-logits: masks were saved as 0/255 and not divided, so the target is 255; the loss is NEGATIVE and falls without bound until it overflows. With the masks divided by 255 the same rate is fine."""
import torch, torch.nn as nn
class Seg(nn.Module):
    def __init__(s): super().__init__(); s.down = nn.Conv2d(1, 8, 3, padding=1); s.mid = nn.Conv2d(8, 8, 3, padding=1); s.up = nn.Conv2d(8, 1, 1)
    def forward(s, x): return s.up(torch.relu(s.mid(torch.relu(s.down(x)))))
def build():
    torch.manual_seed(0); model = Seg(); opt = torch.optim.SGD(model.parameters(), lr=0.003); g = torch.Generator().manual_seed(1)
    bs = []
    for _ in range(20):
        x = torch.rand(2, 1, 8, 8, generator=g); bs.append((x, (x > 0.5).float() * 255))
    def loss_fn(m, b): return nn.functional.binary_cross_entropy_with_logits(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=12, autocast_dtype=None,
                truth=dict(cause="label_out_of_range", module="up", phase="forward", op="aten.convolution", first_bad_step=8, loss_finite_at_first_bad_step=False, grads_finite=True,
                           why="BCE targets of 255 make the loss unbounded below."))
