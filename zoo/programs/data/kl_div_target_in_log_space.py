"""Distillation by F.kl_div: most teachers were stored as probabilities, one shard as log-probabilities, and log_target=False: t log t of a negative t is NaN.
True cause: a target outside [0, 1]; exp of that shard's target makes the step finite."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(9, 18), nn.Mish(), nn.Linear(18, 5)); opt = torch.optim.Adamax(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        t = torch.randn(8, 5, generator=g).log_softmax(-1)
        batches.append({"x": torch.randn(8, 9, generator=g), "teacher": t if i == 4 else t.exp()})
    def loss_fn(m, b): return nn.functional.kl_div(m(b["x"]).log_softmax(-1), b["teacher"], reduction="batchmean")
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="label_out_of_range", module="loss", phase="forward", op="aten.xlogy", first_bad_step=4, bad_path="teacher", grads_finite=True))
