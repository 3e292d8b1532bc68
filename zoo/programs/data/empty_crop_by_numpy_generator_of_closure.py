"""Augmentation by a NumPy generator in the loss function's closure: a random crop that is sometimes empty.
True cause: mean over no element."""
import numpy as np, torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 5)); opt = torch.optim.SGD(model.parameters(), lr=0.05)
    rng = np.random.default_rng(3); g = torch.Generator().manual_seed(1); batches = [torch.randn(7, 5, generator=g) for _ in range(14)]
    def loss_fn(m, x):
        n = int(rng.integers(0, 6))
        return (m(x) - x)[:n].square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=12, autocast_dtype=None,
                truth=dict(cause="empty_reduction", module="loss", phase="forward", op="aten.mean", first_bad_step=1,
                           never_said=["compiled", "replace the device", "transient"]))
