"""Sixty residual-free layers with weights from randn, not scaled by the width: the activations grow by ten with every layer.
Written for this.
True cause: a bad initialisation."""
import torch, torch.nn as nn, torch.nn.functional as F

class Dense(nn.Module):
    def __init__(self, n):
        super().__init__(); self.weight = nn.Parameter(torch.randn(n, n)); self.bias = nn.Parameter(torch.zeros(n))
    def forward(self, x): return F.leaky_relu(x @ self.weight + self.bias)

def build():
    torch.manual_seed(0)
    net = nn.Sequential(*[Dense(64) for _ in range(60)], nn.Linear(64, 3))
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    bs = [dict(x=torch.randn(4, 64, generator=g), y=torch.tensor([0, 1, 2, 0])) for _ in range(2)]
    return dict(model=net, optimizer=opt, batches=bs, loss_fn=lambda m, b: F.cross_entropy(m(b["x"]), b["y"]), steps=2, autocast_dtype=None,
                truth=dict(cause="bad_initialisation", module="49", also_module=("48", "50"), phase="forward", op="aten.mm", first_bad_step=0, line="F.leaky_relu(x @ self.weight"))
