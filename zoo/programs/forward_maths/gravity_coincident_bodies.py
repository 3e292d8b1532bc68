"""Learned N-body simulator: acceleration ~ 1/r^2 over pairs; two bodies of one scene sit at the same place.
True cause: reciprocal of a squared distance that is exactly 0."""
import torch, torch.nn as nn

class PairForce(nn.Module):
    def __init__(s): super().__init__(); s.logG = nn.Parameter(torch.tensor(-2.0))
    def forward(s, pos, mass):
        i, j = torch.triu_indices(pos.shape[1], pos.shape[1], 1); d = pos[:, j] - pos[:, i]
        inv = 1.0 / d.square().sum(-1); f = s.logG.exp() * (mass[:, i] * mass[:, j] * inv)[..., None] * d
        return torch.zeros_like(pos).index_add(1, i, f).index_add(1, j, -f)
class Sim(nn.Module):
    def __init__(s): super().__init__(); s.mass = nn.Sequential(nn.Linear(2, 8), nn.Softplus(), nn.Linear(8, 1), nn.Softplus()); s.force = PairForce()
    def forward(s, pos, feat): return pos + 0.01 * s.force(pos, s.mass(feat).squeeze(-1))

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Sim(); opt = torch.optim.SGD(model.parameters(), lr=1e-2, nesterov=True, momentum=0.8)
    g = torch.Generator().manual_seed(1)
    batches = [{"pos": torch.randn(3, 5, 3, generator=g), "feat": torch.rand(3, 5, 2, generator=g)} for _ in range(6)]
    batches[3]["pos"][1, 4] = batches[3]["pos"][1, 0]
    def loss_fn(m, b): return (m(b["pos"], b["feat"]) - b["pos"] * 0.99).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="force", phase="forward", op="aten.reciprocal", first_bad_step=3))
