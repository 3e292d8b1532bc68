"""CONTROL: gradients of 1e15 with a clip inside the loss function's own scaling; all finite."""
import torch, torch.nn as nn, torch.nn.functional as F

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)); opt = torch.optim.Adam(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 4, generator=g), torch.randn(6, 1, generator=g) * 1e8) for _ in range(5)]
    def loss_fn(m, b): return F.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
