"""Deep autoencoder for sensor readings, trained with RMSprop.

What goes wrong: RMSprop's first update is ten times the learning rate in every weight
(alpha=0.99), so lr=1.0 adds about 10 to every weight of a net of twelve layers.
Similar: https://github.com/thtrieu/darkflow/issues/381 (NaN parameters with RMSprop).
True cause: RMSprop with lr=1.0 adds about ten to every weight in the first step, and twelve layers multiply
that up to an overflow."""

import torch
from torch import nn

SIZES = [64, 64, 64, 48, 48, 32, 16, 32, 48, 48, 64, 64, 64]


class AutoEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        half = len(SIZES) // 2
        self.encoder = self.stack(SIZES[: half + 1])
        self.decoder = self.stack(SIZES[half:], last_linear=True)

    @staticmethod
    def stack(sizes, last_linear=False):
        layers = []
        for a, b in zip(sizes[:-1], sizes[1:]):
            layers += [nn.Linear(a, b), nn.ELU()]
        return nn.Sequential(*(layers[:-1] if last_linear else layers))

    def forward(self, x):
        return self.decoder(self.encoder(x))


def readings(n_batches=20):
    g = torch.Generator().manual_seed(31)
    mix = torch.randn(6, 64, generator=g) * 0.4
    return [torch.randn(32, 6, generator=g) @ mix + 0.05 * torch.randn(32, 64, generator=g) for _ in range(n_batches)]


def build():
    torch.manual_seed(9)
    model = AutoEncoder()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1.0)

    def loss_fn(model, x):
        return ((model(x) - x) ** 2).mean()

    return dict(model=model, optimizer=optimizer, batches=readings(), loss_fn=loss_fn, steps=40, autocast_dtype=None,
                truth=dict(cause="lr_too_high", also=("exploding_gradient",), first_bad_step=1, phase="forward", module="loss",
                           op="aten.pow", line="return ((model(x) - x) ** 2).mean()", repair=("lr=1.0)", "lr=1e-4)")))
