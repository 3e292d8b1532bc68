"""World model: a residual transition cell is unrolled; each call multiplies the state by about 1.5. Short rollouts are fine, the long
evaluation-length rollout overflows fp32 inside one forward. True cause: exploding recurrence."""
import torch, torch.nn as nn

class Cell(nn.Module):
    def __init__(s, d): super().__init__(); s.w = nn.Linear(d, d); s.u = nn.Linear(2, d)
    def forward(s, h, a): return h + nn.functional.leaky_relu(s.w(h), 0.3) + s.u(a)
class World(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(5, 12); s.cell = Cell(12); s.dec = nn.Linear(12, 5)
    def forward(s, o, acts):
        h = s.enc(o)
        for a in acts.unbind(1): h = s.cell(h, a)
        return torch.tanh(s.dec(nn.functional.layer_norm(h, (12,))))

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = World(); opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    with torch.no_grad(): model.cell.w.weight.copy_(0.5 * torch.eye(12) + 0.02 * torch.randn(12, 12))
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(4, 5, generator=g), torch.randn(4, T, 2, generator=g), torch.rand(4, 5, generator=g)) for T in (8, 10, 12, 12, 12, 300, 12)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0], b[1]), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="exploding_recurrence", module="cell", phase="forward", op="aten.add", first_bad_step=5))
