"""Mixed (soft) targets with cross_entropy on logits whose classes of other tasks are masked by -inf: the target there is 0, the
log-probability -Inf, and their product NaN. With class indices the same logits are fine.
True cause: zero times infinity inside the soft-target cross-entropy."""
import torch, torch.nn as nn

class Continual(nn.Module):
    def __init__(s):
        super().__init__(); s.feat = nn.Linear(8, 16); s.head = nn.Linear(16, 6)
        s.register_buffer("old", torch.tensor([False, False, False, True, True, True]))
    def forward(s, x): return s.head(nn.functional.silu(s.feat(x))).masked_fill(s.old, float("-inf"))

def build():
    torch.manual_seed(0); model = Continual(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(4):
        x, y = torch.randn(8, 8, generator=g), torch.randint(0, 3, (8,), generator=g)
        if i == 2:                                                                # mixup starts
            x, y = 0.7 * x + 0.3 * x.flip(0), 0.7 * nn.functional.one_hot(y, 6).float() + 0.3 * nn.functional.one_hot(y.flip(0), 6).float()
        batches.append((x, y))
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="zero_times_inf", module="loss", phase="forward", op="aten.mul", first_bad_step=2, grads_finite=True))
