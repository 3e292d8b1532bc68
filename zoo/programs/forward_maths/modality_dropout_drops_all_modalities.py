"""Multimodal net with modality dropout drawn from its OWN generator and a call counter: a replay draws differently. In call 3 all three
modalities of sample 2 are dropped and the mean over present modalities is 0/0. nn.Dropout beside it is innocent."""
import torch, torch.nn as nn

class ModalDrop(nn.Module):
    def __init__(s, fix):
        super().__init__(); s.gen = torch.Generator().manual_seed(5); s.calls = 0; s.fix = fix
    def forward(s, feats):                                                   # B, M, D
        keep = (torch.rand(feats.shape[:2], generator=s.gen) > 0.3).float()
        keep[keep.sum(1) == 0] = 1.0                                          # never drop all ...
        if s.calls == 3: keep[2] = 0.0                                       # ... but the simulated outage comes after that guard
        s.calls += 1
        n = keep.sum(1, keepdim=True)
        if s.fix == "true": n = n.clamp(min=1)
        return (feats * keep[..., None]).sum(1) / n
class Net(nn.Module):
    def __init__(s, fix):
        super().__init__(); s.enc = nn.Linear(5, 8); s.do = nn.Dropout(0.0 if fix == "innocent" else 0.5); s.md = ModalDrop(fix); s.out = nn.Linear(8, 2)
    def forward(s, x): return s.out(s.md(s.do(torch.relu(s.enc(x)))))

def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 3, 5, generator=g), torch.randint(0, 2, (6,), generator=g)) for _ in range(6)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="md", phase="forward", op="aten.div", first_bad_step=3, loss_finite_at_first_bad_step=False, also=["empty_reduction"],
                           why="all modalities of one sample dropped: count exactly 0; a replay is finite only because counter and generator moved on (not hardware)"))
