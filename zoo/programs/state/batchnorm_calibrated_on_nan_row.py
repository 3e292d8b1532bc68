"""Input BatchNorm re-calibrated in the middle of training on a calibration file that holds a NaN row (no_grad, train mode): running
statistics are NaN from then on. Training goes on with a finite loss (batch statistics); the eval step later is NaN.
True cause: BatchNorm buffers poisoned."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.bn_in = nn.BatchNorm1d(7); s.mlp = nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, 2))
    def forward(s, x): return s.mlp(s.bn_in(x))

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); calib = torch.randn(40, 7, generator=g); calib[23, 4] = float("nan")
    batches = [dict(x=torch.randn(12, 7, generator=g) * 2 + 1, y=torch.randint(0, 2, (12,), generator=g), calibrate=i == 3, train=i != 6) for i in range(8)]
    def loss_fn(m, b):
        m.train(b["train"])
        if b["calibrate"]:
            with torch.no_grad(): m.bn_in(calib)
        return nn.functional.cross_entropy(m(b["x"]), b["y"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="bn_buffers_poisoned", module="bn_in", phase="forward", op="aten.native_batch_norm", first_bad_step=3,
                           loss_finite_at_first_bad_step=True, poisoned_state=["bn_in.running_mean", "bn_in.running_var"]))
