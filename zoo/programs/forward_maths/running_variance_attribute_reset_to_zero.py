"""A reward normaliser keeps its running variance in a plain tensor attribute (no buffer), starting at 0 and reset every fifth call.
True cause: division by zero after the reset. A replay that does not rewind the attribute is finite."""
import torch, torch.nn as nn

class Norm(nn.Module):
    def __init__(s): super().__init__(); s.var = torch.ones(()); s.n = 0; s.lin = nn.Linear(3, 1)
    def forward(s, x, r):
        out = s.lin(x).squeeze(-1) * (r / s.var.sqrt())
        s.n += 1
        s.var = torch.zeros(()) if s.n % 4 == 0 else 0.5 * s.var + 0.5 * r.var()
        return out
def build():
    torch.manual_seed(0); model = Norm(); opt = torch.optim.SGD(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 3, generator=g), torch.randn(6, generator=g)) for _ in range(8)]
    def loss_fn(m, b): return m(*b).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="forward", op="aten.div", first_bad_step=4,
                           never_said=["transient", "replace the device", "compiled"]))
