"""Missing observations are NaN in the targets, and the loss multiplies the error with the mask of observed ones: NaN * 0 is NaN.
After https://github.com/WenjieDu/PyPOTS/pull/821 (the hidden trap: NaN * 0 = NaN).
True cause: NaN in the targets, by convention, that the mask does not remove."""
import torch
from torch import nn


class Imputer(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(2, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


def masked_mse(pred, target, mask):
    return (((pred - target) * mask) ** 2).sum() / mask.sum()


def build():
    torch.manual_seed(1)
    model = Imputer()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(2)
    series = [torch.randn(4, 7, 2, generator=g) for _ in range(4)]
    series[2][0, 3, 1] = float("nan")
    batches = [{"X": torch.nan_to_num(s), "y": s, "observed": (~s.isnan()).float()} for s in series]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: masked_mse(m(b["X"]), b["y"], b["observed"]), steps=4, autocast_dtype=None,
                truth=dict(cause="bad_input_data", also=["where_unselected_branch"], module="data", phase="data", op="data", first_bad_step=2, bad_path="y", sample=0))
