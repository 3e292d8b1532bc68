"""Segmentation with masks saved as 0/255 images and never divided: BCE with a target of 255 is linear in the logit and has no
lower bound. The loss is negative and falls faster and faster, which looks like splendid training, until it overflows.
True cause: targets outside [0, 1]."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.003); g = torch.Generator().manual_seed(1); batches = []
    for _ in range(12):
        x = torch.rand(4, 1, 8, 8, generator=g); batches.append((x, 255.0 * (x > 0.5)))
    def loss_fn(m, b): return nn.functional.binary_cross_entropy_with_logits(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=12, autocast_dtype=None,
                truth=dict(cause="label_out_of_range", module="4", phase="forward", op="aten.convolution", first_bad_step=8))
