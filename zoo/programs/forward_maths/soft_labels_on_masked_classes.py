"""Distillation: the teacher's probabilities times log_softmax of masked student logits. Teacher weight 0 meets -Inf.
True cause: zero times infinity."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Linear(6, 5); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        allowed = torch.ones(8, 5, dtype=torch.bool); x = torch.randn(8, 6, generator=g); t = torch.rand(8, 5, generator=g)
        if i == 3: allowed[:, 2] = False; t[:, 2] = 0
        batches.append((x, t / t.sum(-1, keepdim=True), allowed))
    def loss_fn(m, b):
        x, t, allowed = b
        logp = m(x).masked_fill(~allowed, float("-inf")).log_softmax(-1)
        return -(t * logp).sum(-1).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="zero_times_inf", module="loss", phase="forward", op="aten.mul", first_bad_step=3))
