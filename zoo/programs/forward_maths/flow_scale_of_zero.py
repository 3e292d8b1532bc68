"""An affine coupling layer whose scale is relu: log|det| takes the log of an exact 0.
True cause: log of zero."""
import torch, torch.nn as nn

class Coupling(nn.Module):
    def __init__(s): super().__init__(); s.net = nn.Linear(2, 4)
    def forward(s, x):
        a, b = x.chunk(2, -1); shift, scale = s.net(a).chunk(2, -1); scale = torch.relu(scale + 3.0)
        return torch.cat([a, b * scale + shift], -1), torch.log(scale).sum(-1)
def build():
    torch.manual_seed(0); model = Coupling(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(8, 4, generator=g) for _ in range(5)]; batches[3][2] *= 60
    def loss_fn(m, x): z, ld = m(x); return (0.5 * z.square().sum(-1) - ld).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="loss", phase="forward", op="aten.log", first_bad_step=3))
