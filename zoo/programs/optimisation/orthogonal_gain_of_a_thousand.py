"""A recurrent-style stack is initialised with orthogonal matrices of gain 1000 (the gain was given as a percentage); the first loss overflows.
After https://github.com/jbwang1997/OBBDetection/issues/100 (the weight init method is not suitable, all losses nan).
True cause: a bad initialisation."""
import torch
from torch import nn


class Stack(nn.Module):
    def __init__(self, depth=14, d=16):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(depth))
        self.head = nn.Linear(d, 1)
        for l in self.layers:
            nn.init.orthogonal_(l.weight, gain=1000.0)

    def forward(self, x):
        for l in self.layers:
            x = torch.relu(l(x))
        return self.head(x)


def build():
    torch.manual_seed(1)
    model = nn.ModuleDict({"stack": Stack()})
    opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(2)
    batches = [(torch.randn(8, 16, generator=g), torch.randn(8, 1, generator=g)) for _ in range(3)]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: nn.functional.mse_loss(m["stack"](b[0]), b[1]), steps=3, autocast_dtype=None,
                truth=dict(cause="bad_initialisation", module="stack.layers.13", phase="forward", op="aten.addmm", first_bad_step=0, line="x = torch.relu(l(x))"))
