"""`last_eval` is a buffer that holds NaN until the first evaluation (by design, from the start, never read in training). Guilty: acos of a dot product that
is exactly 1 in batch 2 (a one-hot prediction equal to its target); clamp(-1, 1) does not help."""
import torch, torch.nn as nn

class Geo(nn.Module):
    def __init__(s): super().__init__(); s.register_buffer("last_eval", torch.full((3,), float("nan")))
    def forward(s, a, b): return torch.acos((a * b).sum(-1).clamp(-1.0, 1.0))
class Net(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(9, 4); s.geo = Geo()
    def forward(s, i, t): return s.geo(s.emb(i), t)

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    with torch.no_grad(): model.emb.weight.uniform_(0.1, 0.4); model.emb.weight[8] = torch.tensor([0.0, 1.0, 0.0, 0.0])
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        ids = torch.randint(0, 8, (6,), generator=g); t = torch.eye(4)[torch.randint(0, 4, (6,), generator=g)]
        if i == 2: ids[3] = 8; t[3] = torch.eye(4)[1]
        batches.append((ids, t))
    def loss_fn(m, b): return m(*b).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="arccos_boundary", module="geo", phase="backward", op="aten.acos", also_op=["aten.rsqrt", "aten.mul"], first_bad_step=2,
                           loss_finite_at_first_bad_step=True, nan_by_design=["geo.last_eval"],
                           **{"not": ["hardware_fault", "bn_buffers_poisoned", "uninitialised_memory", "state_overwritten", "corrupt_checkpoint"]}))
