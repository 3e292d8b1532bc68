"""A hand-written softplus, log(1 + exp(beta x)) / beta with beta 5, overflows as soon as an activation is above 18.
After https://github.com/tracel-ai/burn/issues/5373 (exp overflows above 88.7, with beta 5 from x = 18 upwards).
True cause: overflow of exp."""
import torch
import torch.nn as nn


class Softplus(nn.Module):
    def __init__(self, beta=5.0):
        super().__init__()
        self.beta = beta

    def forward(self, x):
        return torch.log(1 + torch.exp(x * self.beta)) / self.beta


def build():
    torch.manual_seed(0)
    body = nn.Linear(6, 1)
    with torch.no_grad():
        body.weight.fill_(1.0)
        body.bias.zero_()
    model = nn.Sequential(body, Softplus(), nn.Linear(1, 1))
    opt = torch.optim.SGD(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(3)
    xs = [torch.rand(5, 6, generator=g) * 4 for _ in range(4)]          # every feature in [0, 4]
    xs[2][3] = 3.8                                                      # all six are high at once
    data = [(x, x.sum(1, keepdim=True)) for x in xs]
    return dict(model=model, optimizer=opt, batches=data, loss_fn=lambda m, b: (m(b[0]) - b[1]).abs().mean(), steps=4, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="1", phase="forward", op="aten.exp", first_bad_step=2, line="torch.exp(x * self.beta)", sample=3))
