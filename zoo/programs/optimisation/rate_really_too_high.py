"""A small regression with a learning rate far beyond stability: the loss grows geometrically until it overflows in float32.
True cause: the learning rate."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)); opt = torch.optim.SGD(model.parameters(), lr=3.0)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(16, 6, generator=g), torch.randn(16, 1, generator=g)) for _ in range(60)]
    def loss_fn(m, b): return (m(b[0]) - b[1]).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=60, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="loss", phase="forward", op="?", first_bad_step=4))
