"""Cross-entropy with class weights that give the background 0; a tile that is background only has a total weight of 0, and the weighted mean is 0/0.
True cause: an empty reduction (every label of batch 3 counts nothing)."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.ReLU(), nn.Conv2d(6, 4, 1))
    opt = torch.optim.Adadelta(model.parameters()); g = torch.Generator().manual_seed(1)
    batches = [dict(tile=torch.randn(2, 3, 6, 6, generator=g), mask=torch.randint(0, 4, (2, 6, 6), generator=g)) for _ in range(5)]
    batches[3]["mask"].zero_()                                                    # open sea
    weight = torch.tensor([0.0, 1.0, 2.0, 2.0])
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b["tile"]), b["mask"], weight=weight)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="empty_reduction", module="loss", phase="forward", op="aten.nll_loss2d_forward", first_bad_step=3))
