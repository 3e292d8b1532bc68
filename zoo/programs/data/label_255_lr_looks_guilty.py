"""Road masks as BCE targets: the png holds 0 / 255 from batch 2 on (the loader's /255 was lost in one shard). The loss goes negative and
the three linear layers run away in a few steps. lr looks high and the pixels are unscaled too (0..4, constant over all batches: innocent)."""
import torch, torch.nn as nn

def build(fix=None):
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.05 if fix == "innocent" else 0.1); g = torch.Generator().manual_seed(1); batches = []
    for k in range(40):
        x = 4 * torch.rand(16, 8, generator=g); y = (x[:, :1] > 1.0).float()
        batches.append((x, y * (255.0 if k >= 2 and fix != "true" else 1.0)))
    def loss_fn(m, b): return nn.functional.binary_cross_entropy_with_logits(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="label_out_of_range", module="2", phase="forward", op="aten.addmm", first_bad_step=6, loss_finite_at_first_bad_step=False,
                           also=["lr_too_high"], why="target 255: loss unbounded below, weights grow super-exponentially; with targets 0/1 the same rate is stable"))
