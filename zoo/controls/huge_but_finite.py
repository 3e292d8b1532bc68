"""CONTROL: money in cents: targets of 1e12, a squared loss of 1e24 and gradients of 1e12, Adam with its own scale-free step. Large, finite, falling. One batch has amounts ten times larger."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Linear(4, 1); opt = torch.optim.Adam(model.parameters(), lr=1e10); g = torch.Generator().manual_seed(1)
    batches = [(torch.rand(8, 4, generator=g), (1e13 if i == 4 else 1e12) * (1 + torch.rand(8, 1, generator=g))) for i in range(10)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=10, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
