"""A small ViT-like segmenter with BCE: the void class of the mask is 255 in one batch and was meant to be ignored. The loss dives and overflows.
True cause: labels out of range."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 24), nn.GELU(), nn.Linear(24, 1)); opt = torch.optim.SGD(model.parameters(), lr=0.02)
    g = torch.Generator().manual_seed(1); batches = []
    for _ in range(60):
        x = torch.randn(16, 6, generator=g); y = (x[:, :1] > 0).float(); y[x[:, 1:2] > 1.0] = 255.0; batches.append((x, y))
    def loss_fn(m, b): return nn.functional.binary_cross_entropy_with_logits(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=60, autocast_dtype=None,
                truth=dict(cause="label_out_of_range", module="loss", phase="forward", op="?", first_bad_step=7))
