"""CONTROL: bf16 autocast with activations of 1e6."""
import torch, torch.nn as nn, torch.nn.functional as F

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)); opt = torch.optim.AdamW(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model[0].weight.mul_(1e4)
    batches = [(torch.randn(6, 4, generator=g) * 1e2, torch.randn(6, 1, generator=g)) for _ in range(4)]
    def loss_fn(m, b): return F.mse_loss(m(b[0]).float(), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=torch.bfloat16, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
