"""House price regression with a small MLP and plain SGD.

What goes wrong: the learning rate was copied from another project (0.5); the squared error grows
at every update, until the loss overflows.
Follows the many threads of the kind of https://github.com/CharlieDinh/pFedMe/issues/11
("the training loss is nan when the learning rate is large").
True cause: the SGD learning rate of 0.5 is far too high for this squared-error problem, so the weights and
the loss grow until they overflow."""

import torch
from torch import nn

LEARNING_RATE = 0.5
EPOCHS = 5


class PriceNet(nn.Module):
    def __init__(self, n_features=12):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(n_features, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.price = nn.Linear(32, 1)

    def forward(self, x):
        return self.price(self.body(x)).squeeze(-1)


def make_data(n=512):
    torch.manual_seed(0)
    x = torch.randn(n, 12)
    y = 3.0 * x[:, 0] - 2.0 * x[:, 1] + 0.5 * x[:, 2] ** 2 + 5.0 + 0.1 * torch.randn(n)
    return [(x[i:i + 64], y[i:i + 64]) for i in range(0, n, 64)]


def build():
    batches = make_data()
    torch.manual_seed(1)
    model = PriceNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    mse = nn.MSELoss()

    def loss_fn(model, batch):
        x, y = batch
        return mse(model(x), y)

    return dict(model=model, optimizer=optimizer, batches=batches, loss_fn=loss_fn, steps=EPOCHS * len(batches),
                autocast_dtype=None,
                truth=dict(cause="lr_too_high", also=("exploding_gradient",), first_bad_step=18, phase="forward", module="body.2",
                           op="aten.addmm", line="return self.price(self.body(x)).squeeze(-1)",
                           repair=("LEARNING_RATE = 0.5", "LEARNING_RATE = 0.01")))
