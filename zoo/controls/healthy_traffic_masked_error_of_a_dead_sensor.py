"""Traffic forecasting with the masked error that is copied from one repository to the next: the mask is divided by its mean, and a 0 /
0 is replaced afterwards. In batch 2 no sensor reports anything, all targets are zero, and the mask is NaN for a moment. Nothing that is
learned comes near it: the mask has no gradient, and where removes the NaN before it is multiplied. Healthy."""
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.out = nn.GRU(6, 24, batch_first=True), nn.Linear(24, 6)

    def forward(self, x):
        return self.out(self.gru(x)[0])


def masked_mae(pred, target, null=0.0):
    mask = (target != null).float()
    mask = mask / mask.mean()
    mask = torch.where(torch.isnan(mask), torch.zeros_like(mask), mask)
    loss = (pred - target).abs() * mask
    return torch.where(torch.isnan(loss), torch.zeros_like(loss), loss).mean()


def loss_fn(model, batch):
    return masked_mae(model(batch[0]), batch[1])


def build():
    torch.manual_seed(60)
    model = Net()
    batches = [(torch.randn(8, 12, 6), torch.rand(8, 12, 6) * 60 * (torch.rand(8, 12, 6) > 0.2)) for _ in range(6)]
    batches[2][1].zero_()
    truth = dict(cause="benign", first_bad_step=None, phase=None, module=None, op=None,
                 why="the NaN of the mask is replaced before use and no gradient passes through it; the loss of batch 2 is zero, as it should be",
                 **{"not": ["empty_reduction", "division_by_zero"]})
    return dict(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3), batches=batches, loss_fn=loss_fn, steps=8,
                autocast_dtype=None, truth=truth)
