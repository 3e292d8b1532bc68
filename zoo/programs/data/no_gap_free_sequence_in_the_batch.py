"""A series with any gap is dropped from the loss; in one batch every series has a gap, and the mean over nothing is NaN.
After https://github.com/google-research/flood-forecasting/issues/275 (mask evaluates to all-False, empty reductions, NaN loss).
True cause: the mean of an empty selection."""
import torch
import torch.nn as nn


def build():
    torch.manual_seed(6)
    lstm = nn.ModuleDict({"lstm": nn.LSTM(3, 10, batch_first=True), "mu": nn.Linear(10, 1)})
    opt = torch.optim.Adam(lstm.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(7)
    forcing = torch.randn(4, 3, 8, 3, generator=g)
    discharge = torch.rand(4, 3, 8, generator=g)
    gaps = torch.zeros(4, 3, 8, dtype=torch.bool)
    gaps[0, 1, 2] = gaps[1, 0, 5] = True
    gaps[2, [0, 1, 2], [1, 7, 3]] = True

    def loss_fn(m, k):
        h, _ = m["lstm"](forcing[k])
        y_hat = m["mu"](h)[..., 0]
        complete = ~gaps[k].any(1)
        err = (y_hat[complete] - discharge[k][complete]).pow(2)
        return err.mean()

    return dict(model=lstm, optimizer=opt, batches=[0, 1, 2, 3], loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="empty_reduction", module="loss", phase="forward", op="aten.mean", first_bad_step=2, line="return err.mean()"))
