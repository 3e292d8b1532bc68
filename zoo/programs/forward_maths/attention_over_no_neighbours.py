"""Graph attention masks non-neighbours with -inf; a dropped edge leaves one node without neighbours, and its softmax is NaN.
After https://github.com/BorealisAI/SLAPS-GNN/issues/3 (nodes with no connections give nan).
True cause: softmax over a fully masked row."""
import torch
import torch.nn as nn


class GAT(nn.Module):
    def __init__(self, d_in, d):
        super().__init__()
        self.proj, self.left, self.right = nn.Linear(d_in, d, bias=False), nn.Linear(d, 1), nn.Linear(d, 1)

    def forward(self, x, adj):
        h = self.proj(x)
        e = nn.functional.leaky_relu(self.left(h) + self.right(h).T, 0.2)
        alpha = torch.softmax(e.masked_fill(adj == 0, float("-inf")), dim=1)
        return alpha @ h


def edge_dropout(adj, keep):
    return adj * keep


def build():
    torch.manual_seed(6)
    gat = nn.ModuleDict({"gat": GAT(5, 4), "cls": nn.Linear(4, 2)})
    opt = torch.optim.Adam(gat.parameters(), lr=5e-3)
    g = torch.Generator().manual_seed(7)
    adj = torch.tensor([[0, 1, 1, 0], [1, 0, 1, 0], [1, 1, 0, 1], [0, 0, 1, 0.0]])
    keep = [torch.ones(4, 4) for _ in range(4)]
    keep[1][0, 1] = 0
    keep[2][3, 2] = 0
    x, y = torch.randn(4, 5, generator=g), torch.tensor([0, 1, 0, 1])

    def loss_fn(m, k):
        out = m["cls"](m["gat"](x, edge_dropout(adj, k)))
        return nn.functional.cross_entropy(out, y)

    return dict(model=gat, optimizer=opt, batches=keep, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="softmax_fully_masked_row", module="gat", phase="forward", op="aten._softmax", first_bad_step=2, line="alpha = torch.softmax(", sample=3))
