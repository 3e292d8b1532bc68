"""Self-supervised pretraining on a table: the squared error of each column is divided by its variance in the batch, and by its mean if the variance is zero. A constant
column with a negative mean turns its term into one that falls without bound; the network follows it.
After https://github.com/dreamquark-ai/tabnet/issues/515 (the loss goes to -inf; a std of zero is replaced by the mean, which was small and negative).
True cause: a loss without a lower bound drives the weights to infinity; the rate is ordinary."""
import torch
from torch import nn


class TabEncoder(nn.Module):
    def __init__(self, columns=6, width=16):
        super().__init__()
        self.register_buffer("mask_token", torch.zeros(columns))
        self.encode = nn.Sequential(nn.Linear(columns, width), nn.Tanh()).requires_grad_(False)     # random features
        self.decode = nn.Linear(width, columns)

    def forward(self, x, mask):
        return self.decode(0.2 * self.encode(torch.where(mask, self.mask_token, x)))


def unsupervised_loss(pred, x, mask):
    errors = (pred - x) * mask
    means = x.mean(0)
    scale = x.std(0) ** 2
    scale = torch.where(scale == 0, means, scale)
    return (errors.square() / scale).sum(-1).div(mask.sum(-1) + 1e-9).mean()


def build():
    torch.manual_seed(0)
    model = TabEncoder()
    opt = torch.optim.SGD(model.decode.parameters(), lr=0.5, momentum=0.9)
    g = torch.Generator().manual_seed(8)
    batches = []
    for _ in range(5):
        x = torch.randn(32, 6, generator=g)
        x[:, 3] = -0.8                                     # a sensor that was never connected
        batches.append((x, torch.rand(32, 6, generator=g) < 0.5))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: unsupervised_loss(m(*b), *b), steps=130, autocast_dtype=None,
                truth=dict(cause="exploding_gradient", also=("lr_too_high",), module="loss", phase="forward", op="aten.mean", also_op=("aten.pow", "aten.div", "aten.sum"), first_bad_step=117,
                           line="errors.square() / scale", why="the term of column 3 is a squared error with a negative factor"))
