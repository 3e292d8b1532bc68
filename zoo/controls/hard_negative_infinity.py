"""CONTROL: hard negative mining. Positives are set to +inf before the minimum and negatives to -inf before the maximum; both are selected
away, the selected values and all gradients are finite."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv1d(1, 6, 4, stride=2), nn.Linear(6 * 7, 8)

    def forward(self, x):
        return F.normalize(self.fc(torch.relu(self.conv(x)).flatten(1)), dim=-1)


def batch_hard(z, y, margin=0.3):
    d = 1 - z @ z.t()
    same = y[:, None] == y[None]
    hardest_negative = d.masked_fill(same, float("inf")).min(1).values
    hardest_positive = d.masked_fill(~same, float("-inf")).max(1).values
    return torch.relu(hardest_positive - hardest_negative + margin).mean()


def build():
    torch.manual_seed(0)
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 1, 16, generator=g), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])) for _ in range(8)]

    def loss_fn(m, b):
        return batch_hard(m(b[0]), b[1])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
