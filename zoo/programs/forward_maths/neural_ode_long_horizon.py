"""Neural ODE by explicit Euler with a linear field that doubles the state each step: the horizon is 8 steps in every batch but 400 in batch 3. Weights,
rate and data are ordinary; 2**400 is not."""
import torch, torch.nn as nn
class Field(nn.Module):
    def __init__(s, d): super().__init__(); s.lin = nn.Linear(d, d)
    def forward(s, y): return s.lin(y)
class ODENet(nn.Module):
    def __init__(s, d=4):
        super().__init__(); s.field = Field(d); s.read = nn.Linear(d, 1)
        with torch.no_grad(): s.field.lin.weight.copy_(2 * torch.eye(d) + 0.02 * torch.randn(d, d)); s.field.lin.bias.zero_()
    def forward(s, y, n, h=0.5):
        for _ in range(n): y = y + h * s.field(y)
        return s.read(torch.tanh(y * 1e-3))
def build():
    torch.manual_seed(0); model = ODENet(); opt = torch.optim.Adam(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1)
    bs = [dict(y0=torch.randn(6, 4, generator=g), n=400 if i == 3 else 8, tgt=torch.randn(6, 1, generator=g)) for i in range(6)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b["y0"], b["n"]), b["tgt"])
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="exploding_recurrence", module="field.lin", phase="forward", op="aten.addmm", first_bad_step=3, loss_finite_at_first_bad_step=False,
                           why="The state doubles in each of 400 calls of the same field."))
