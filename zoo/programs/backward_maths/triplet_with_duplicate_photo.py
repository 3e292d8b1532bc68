"""A hand-written triplet loss, ((a - p) ** 2).sum() ** 0.5: the data hold the same photo twice, so anchor and positive are equal to the last bit.
True cause: singular gradient of a power of one half at distance exactly 0; F.triplet_margin_loss has an eps and would be finite."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(12, 16), nn.SELU(), nn.Linear(16, 6)); opt = torch.optim.Adamax(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = [torch.randn(3, 5, 12, generator=g) for _ in range(5)]
    batches[2][1, 3] = batches[2][0, 3]                                           # positive == anchor
    def loss_fn(m, b):
        a, p, n = m(b[0]), m(b[1]), m(b[2])
        dist = lambda u, v: ((u - v) ** 2).sum(-1) ** 0.5
        return (dist(a, p) - dist(a, n) + 4.0).relu().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="loss", phase="backward", op="aten.pow", first_bad_step=2,
                           loss_finite_at_first_bad_step=True))
