"""Binary segmentation with PNG masks stored as 0/255 and never divided: BCE target 255 is unbounded below.
Real: "my loss is negative and keeps falling, then NaN" (U-Net threads). True cause: targets outside [0, 1]."""
import torch, torch.nn as nn

class UNetish(nn.Module):
    def __init__(s):
        super().__init__(); s.down = nn.Conv2d(1, 8, 3, padding=1); s.mid = nn.Conv2d(8, 8, 3, padding=1); s.up = nn.Conv2d(8, 1, 1)
    def forward(s, x):
        a = torch.relu(s.down(x)); return s.up(a + torch.relu(s.mid(a)))

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = UNetish(); opt = torch.optim.SGD(model.parameters(), lr=2e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(20):
        img = torch.rand(4, 1, 12, 12, generator=g); batches.append({"image": img, "mask": (img > 0.6).float() * 255})
    def loss_fn(m, b): return nn.functional.binary_cross_entropy_with_logits(m(b["image"]), b["mask"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=12, autocast_dtype=None,
                truth=dict(cause="label_out_of_range", module="mid", phase="forward", op="aten.convolution", first_bad_step=10))
