"""A deep residual-free MLP with a hand-written initialiser: std = fan_in ** 0.5 where fan_in ** -0.5 was meant. Each layer multiplies the
signal by about 64; after a dozen and more layers float32 overflows in the very first forward.
True cause: bad initialisation; with the weights rescaled by 1/fan_in the step is finite, no rate and no batch matters."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Deep(nn.Module):
    def __init__(self, width=64, depth=26):
        super().__init__()
        self.inp = nn.Linear(8, width)
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])
        self.out = nn.Linear(width, 3)
        self.apply(self.initialise)

    @staticmethod
    def initialise(m):
        if isinstance(m, nn.Linear):
            nn.init.normal_(m.weight, std=m.in_features ** 0.5)
            nn.init.zeros_(m.bias)

    def forward(self, x):
        x = self.inp(x)
        for layer in self.layers:
            x = layer(F.leaky_relu(x, 0.2))
        return self.out(x)


def build():
    torch.manual_seed(0)
    model = Deep()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 8, generator=g), torch.randint(0, 3, (8,), generator=g)) for _ in range(3)]

    def loss_fn(m, b):
        return F.cross_entropy(m(b[0]), b[1])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="bad_initialisation", module="layers.22", phase="forward", op="aten.addmm", first_bad_step=0))
