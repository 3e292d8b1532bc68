"""CONTROL: the negative log-density of a narrow Gaussian is far below 0 and falls steadily, as it should; targets lie outside [0, 1], the log-variances go
towards -10, and one sample is an outlier of 40 sigma. Everything stays finite and bounded."""
import torch, torch.nn as nn

class Density(nn.Module):
    def __init__(s): super().__init__(); s.mean = nn.Linear(3, 2); s.logvar = nn.Parameter(torch.full((2,), -9.0))
    def forward(s, x): return torch.distributions.Normal(s.mean(x), (0.5 * s.logvar.clamp(-10.0, 10.0)).exp(), validate_args=False)

def build():
    torch.manual_seed(0); model = Density(); opt = torch.optim.Adamax(model.parameters(), lr=0.05); g = torch.Generator().manual_seed(1); w = torch.randn(3, 2, generator=g)
    with torch.no_grad(): model.mean.weight.copy_(w.T); model.mean.bias.zero_()
    model.mean.requires_grad_(False); batches = []
    for i in range(30):
        x = torch.randn(8, 3, generator=g); y = x @ w + 0.004 * torch.randn(8, 2, generator=g)
        if i == 12: y[3] += 0.4
        batches.append((x, y))
    def loss_fn(m, b): return -m(b[0]).log_prob(b[1]).sum(-1).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=30, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
