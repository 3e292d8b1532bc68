"""The symmetric normalisation takes degree ** -0.5, which is Inf for an isolated node, and multiplies it with a zero of the adjacency.
After https://github.com/pyg-team/pytorch_geometric/issues/61 (deg.pow(-0.5), nan instead of inf).
True cause: zero to a negative power, a division by zero."""
import torch, torch.nn as nn

class Conv(nn.Module):
    def __init__(self, a, b): super().__init__(); self.w = nn.Parameter(torch.randn(a, b) / a ** 0.5)
    def forward(self, x, adj):
        d = adj.sum(1).pow(-0.5)
        return (d[:, None] * adj * d[None, :]) @ x @ self.w

def build():
    torch.manual_seed(0)
    m = nn.ModuleDict({"a": Conv(3, 8), "b": Conv(8, 2)})
    opt = torch.optim.RMSprop(m.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(2)
    def graph(alone):
        adj = torch.ones(4, 4) - torch.eye(4)
        if alone: adj[3, :] = adj[:, 3] = 0
        return torch.randn(4, 3, generator=g), adj, torch.randn(4, 2, generator=g)
    def loss_fn(m, b):
        x, adj, y = b
        return (m["b"](torch.tanh(m["a"](x, adj)), adj) - y).abs().mean()
    return dict(model=m, optimizer=opt, batches=[graph(False), graph(False), graph(False), graph(True)], loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", also=("zero_times_inf",), module="a", phase="forward", op="aten.pow", also_op=("aten.mul",), first_bad_step=3, line="adj.sum(1).pow(-0.5)", sample=3))
