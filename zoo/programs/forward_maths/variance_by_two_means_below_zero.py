"""Var = E[x^2] - E[x]^2 in float32 for values around 10,000 with little spread: the difference is negative by rounding, and its sqrt is NaN.
True cause: sqrt of a negative number (a domain error)."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Linear(8, 2); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 8, generator=g), torch.randn(6, 2, generator=g)) for _ in range(5)]
    batches[3][0].mul_(1e-3).add_(12345.678)
    def loss_fn(m, b):
        x = b[0]; spread = (x.square().mean(-1, keepdim=True) - x.mean(-1, keepdim=True).square()).sqrt()
        return (m((x - x.mean(-1, keepdim=True)) / (spread + 1e-3)) - b[1]).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="domain_error", module="loss", phase="forward", op="aten.sqrt", first_bad_step=3, never_said=["of zero"]))
