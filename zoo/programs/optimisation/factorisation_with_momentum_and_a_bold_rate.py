"""Matrix factorisation of ratings with biases, SGD with Nesterov momentum 0.95. The first steps look well, since momentum has not built
up yet; then user and item factors push each other up, each gradient being proportional to the other factor, and within a few steps the
predictions overflow. The true cause is the rate of 20, bold already without momentum."""
import torch
from torch import nn


class MatrixFactorisation(nn.Module):
    def __init__(self, users=40, items=30, d=8):
        super().__init__()
        self.user, self.item = nn.Embedding(users, d), nn.Embedding(items, d)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
        for e in (self.user, self.item):
            nn.init.normal_(e.weight, std=0.3)
        for e in (self.user_bias, self.item_bias):
            nn.init.zeros_(e.weight)

    def forward(self, u, i):
        return (self.user(u) * self.item(i)).sum(-1) + self.user_bias(u).squeeze(-1) + self.item_bias(i).squeeze(-1) + 3.0


def loss_fn(model, batch):
    u, i, rating = batch
    return nn.functional.mse_loss(model(u, i), rating)


def build():
    torch.manual_seed(22)
    model = MatrixFactorisation()
    batches = [(torch.randint(0, 40, (256,)), torch.randint(0, 30, (256,)), torch.randint(1, 6, (256,)).float()) for _ in range(5)]
    opt = torch.optim.SGD(model.parameters(), lr=20.0, momentum=0.95, nesterov=True)
    truth = dict(
        cause="lr_too_high", first_bad_step=5, phase="forward", module="loss", op="aten.mse_loss",
        line="return nn.functional.mse_loss(model(u, i), rating)",
        why="loss and factors grow from the first steps on with ordinary ratings; a hundredth of the rate is finite on the same batches",
        repair=("lr=20.0", "lr=0.2"),
    )
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=20, autocast_dtype=None, truth=truth)
