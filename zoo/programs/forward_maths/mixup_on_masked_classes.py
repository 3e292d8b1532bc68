"""Class-incremental learning: logits of classes not seen yet are set to -inf. Hard labels work for the first batches; then mixup begins,
and its soft targets multiply probability 0 with log-probability -inf.
True cause: 0 * inf in the soft-target cross entropy; mask and labels are each fine."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class Head(nn.Module):
    def __init__(s): super().__init__(); s.fc = nn.Linear(20, 10); s.register_buffer("seen", torch.arange(10) < 6)
    def forward(s, h): return s.fc(h).masked_fill(~s.seen, float("-inf"))
class Net(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Sequential(nn.Linear(12, 20), nn.LayerNorm(20), nn.GELU()); s.head = Head()
    def forward(s, x): return s.head(s.body(x))

def build():
    torch.manual_seed(6); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    g = torch.Generator().manual_seed(3)
    batches = [dict(x=torch.randn(8, 12, generator=g), y=torch.randint(0, 6, (8,), generator=g), lam=None if i < 3 else 0.7) for i in range(6)]
    def loss_fn(m, b):
        if b["lam"] is None: return nn.functional.cross_entropy(m(b["x"]), b["y"])
        x = b["lam"] * b["x"] + (1 - b["lam"]) * b["x"].flip(0)
        y = nn.functional.one_hot(b["y"], 10).float(); y = b["lam"] * y + (1 - b["lam"]) * y.flip(0)
        return nn.functional.cross_entropy(m(x), y)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="zero_times_inf", module="loss", where="loss_fn", phase="forward", op="aten.mul", first_bad_step=3, grads_finite=True))
