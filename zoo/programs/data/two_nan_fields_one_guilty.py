"""`y` holds NaN (missing labels) in every batch and is rightly indexed out; `w` holds NaN in batch 1 too, where weights are not used. Only in batch 3 are weights used,
and w[2] is NaN there. Guilty: batch 3, field w, sample 2. y is innocent although it is non-finite in the same batch."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [dict(x=torch.randn(8, 4, generator=g), y=torch.randn(8, 1, generator=g), w=torch.rand(8, 1, generator=g) + 0.5, weighted=i % 3 == 0) for i in range(6)]
    for b in batches: b["y"][5] = float("nan")
    batches[1]["w"][6] = float("nan"); batches[3]["w"][2] = float("nan")
    def loss_fn(m, b):
        keep = ~torch.isnan(b["y"][:, 0]); e = (m(b["x"][keep]) - b["y"][keep]) ** 2
        return (e * b["w"][keep]).mean() if b["weighted"] else e.mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="bad_input_data", module="data", phase="data", op="data", also_op=["aten.mul"], first_bad_step=3, bad_path="w[2]", innocent_path="y[5]",
                           **{"not": ["empty_reduction", "lr_too_high", "zero_times_inf", "hardware_fault"]}))
