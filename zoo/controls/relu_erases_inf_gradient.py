"""CONTROL: sqrt(relu(x)) has an infinite slope at exactly 0, and the backward of sqrt really gives Inf there; the backward of ReLU then puts 0
at those places. Every parameter's gradient is finite. (A product with a mask in place of ReLU would be a bug.)"""
import torch, torch.nn as nn

class SqrtReLU(nn.Module):
    def forward(s, x): return torch.sqrt(torch.relu(x))

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(6, 12), SqrtReLU(), nn.Linear(12, 1)); opt = torch.optim.SGD(model.parameters(), lr=0.001)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(16, 6, generator=g), torch.randn(16, 1, generator=g)) for _ in range(8)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
