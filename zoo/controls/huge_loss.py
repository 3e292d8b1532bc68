"""CONTROL: a loss of about 1e24 in raw units, every step. Large, but finite, and so are the gradients (1e16) and their norm; the rate suits it."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1)); opt = torch.optim.SGD(model.parameters(), lr=1e-14)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(8, 5, generator=g), 1e12 * torch.randn(8, 1, generator=g)) for _ in range(8)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
