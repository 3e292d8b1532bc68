"""A regressor is trained on the mean squared logarithmic error, log(prediction + 1). Nothing keeps its predictions above -1; for one unusual house it is below.
After https://github.com/timeseriesAI/tsai/issues/150 (MSLE as a loss: NaNs after a few epochs).
True cause: the logarithm of a negative number."""
import torch
from torch import nn


class MSLELoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.mse = nn.MSELoss()

    def forward(self, prediction, target):
        return self.mse(torch.log(prediction.view(-1) + 1), torch.log(target + 1))


class WideAndDeep(nn.Module):
    def __init__(self, cities=6, numeric=4):
        super().__init__()
        self.city = nn.Embedding(cities, 3)
        self.wide = nn.Linear(numeric, 1)
        self.deep = nn.Sequential(nn.Linear(numeric + 3, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, city, x):
        return 2.0 + 0.3 * self.wide(x) + 0.3 * self.deep(torch.cat([x, self.city(city)], -1))


def build():
    torch.manual_seed(0)
    model = nn.ModuleDict({"net": WideAndDeep(), "msle": MSLELoss()})
    with torch.no_grad():
        model["net"].wide.weight.copy_(torch.tensor([[0.4, 0.3, -0.2, 0.1]]))
    opt = torch.optim.Adagrad(model.parameters(), lr=0.01)
    g = torch.Generator().manual_seed(9)
    batches = []
    for i in range(6):
        x = torch.randn(8, 4, generator=g)
        if i == 3:
            x[6] = torch.tensor([-60.0, -50.0, 40.0, -20.0])
        batches.append((torch.randint(0, 6, (8,), generator=g), x, torch.rand(8, generator=g) * 5))

    def loss_fn(m, b):
        return m["msle"](m["net"](b[0], b[1]), b[2])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="domain_error", also=("input_out_of_scale",), module="msle", phase="forward", op="aten.log", first_bad_step=3, sample=6,
                           line="torch.log(prediction.view(-1) + 1)", why="the prediction of house 6 is below -1"))
