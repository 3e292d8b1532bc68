"""Click prediction: a missing dense feature was stored as FLT_MAX (finite!). The factorisation machine squares it.
Real kind: "nodata value 3.4028e38 of the raster/feature store ended up in training".
True cause: nonsense (yet finite) value in one sample; without that sample the step is finite."""
import torch, torch.nn as nn

class FM(nn.Module):
    def __init__(s, n, k): super().__init__(); s.v = nn.Parameter(torch.randn(n, k) * 0.1)
    def forward(s, x):
        a = x @ s.v
        return 0.5 * (a.square() - (x.square() @ s.v.square())).sum(-1)
class DeepFM(nn.Module):
    def __init__(s):
        super().__init__(); s.item = nn.EmbeddingBag(40, 6); s.fm = FM(14, 4); s.deep = nn.Sequential(nn.Linear(14, 16), nn.ReLU(), nn.Linear(16, 1))
    def forward(s, ids, dense):
        z = torch.cat([s.item(ids), dense], -1); return s.fm(z) + s.deep(z).squeeze(-1)

def build():
    torch.set_num_threads(1); torch.manual_seed(1); model = DeepFM(); opt = torch.optim.Adagrad(model.parameters(), lr=0.01)
    g = torch.Generator().manual_seed(2); batches = []
    for i in range(8):
        batches.append({"ids": torch.randint(0, 40, (16, 3), generator=g), "dense": torch.rand(16, 8, generator=g), "click": torch.randint(0, 2, (16,), generator=g).float()})
    batches[6]["dense"][11, 2] = torch.finfo(torch.float32).max
    def loss_fn(m, b): return nn.functional.binary_cross_entropy_with_logits(m(b["ids"], b["dense"]), b["click"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="bad_input_data", module="fm", phase="forward", op="aten.pow", first_bad_step=6, bad_path="dense[11]"))
