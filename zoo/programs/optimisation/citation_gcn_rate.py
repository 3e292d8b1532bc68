"""A graph convolution without normalisation between its layers, node regression, SGD with a rate that was meant for normalised features.
After https://github.com/CharlieDinh/pFedMe/issues/11 (the training loss is nan when the learning rate is large).
True cause: the learning rate is too high."""
import torch
from torch import nn


class GCNConv(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.lin = nn.Linear(i, o)

    def forward(self, x, adj):
        deg = adj.sum(1, keepdim=True)
        return self.lin(adj @ x / deg)


class GCN(nn.Module):
    def __init__(self, dims=(10, 32, 32, 1)):
        super().__init__()
        self.convs = nn.ModuleList(GCNConv(a, b) for a, b in zip(dims, dims[1:]))

    def forward(self, x, adj):
        for i, conv in enumerate(self.convs):
            x = conv(x, adj)
            if i + 1 < len(self.convs):
                x = x.relu()
        return x[:, 0]


def build():
    torch.manual_seed(21)
    n = 30
    adj = ((torch.rand(n, n) < 0.2) | torch.eye(n, dtype=torch.bool)).float()
    model = GCN()
    opt = torch.optim.SGD(model.parameters(), lr=0.3)
    x = torch.rand(n, 10) * 8
    y = x.sum(1) + torch.randn(n)
    masks = [torch.rand(n) < 0.6 for _ in range(5)]

    def loss_fn(m, mask):
        out = m(x, adj)
        return nn.functional.mse_loss(out[mask], y[mask])

    return dict(model=model, optimizer=opt, batches=masks, loss_fn=loss_fn, steps=12, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="loss", phase="forward", op="aten.mse_loss", first_bad_step=2, line="mse_loss(out[mask], y[mask])"))
