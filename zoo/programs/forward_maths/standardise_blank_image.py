"""Per-image standardisation inside the model, (x - mean) / std, written in place on a view; one image of the batch is black.
True cause: division by a standard deviation of exactly 0."""
import torch, torch.nn as nn

class Standardise(nn.Module):
    def forward(s, x):
        flat = x.clone().flatten(1)                                               # a view of the clone
        flat.sub_(flat.mean(1, keepdim=True))
        flat.div_(flat.std(1, keepdim=True))
        return flat.view_as(x)

def build():
    torch.manual_seed(0)
    model = nn.Sequential(Standardise(), nn.Conv2d(3, 6, 3, stride=2), nn.SiLU(), nn.Flatten(), nn.Linear(54, 5))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.rand(4, 3, 8, 8, generator=g), torch.randint(0, 5, (4,), generator=g)) for _ in range(5)]
    batches[1][0][3] = 0.0
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="0", phase="forward", op="aten.div_", first_bad_step=1))
