"""Point cloud alignment: a net predicts keypoints, the best rotation comes from an SVD (Kabsch).

What goes wrong: in one sample source and target points form a regular octahedron, the covariance is a
multiple of the identity, its singular values are equal, and the derivative of U and V has
1 / (s_i^2 - s_j^2) in it.
Follows https://github.com/pytorch/pytorch/issues/49886 and https://github.com/jax-ml/jax/issues/2311.
True cause: one covariance matrix is a multiple of the identity, so its singular values are equal and the
SVD's derivative divides by zero."""

import torch
from torch import nn


class Aligner(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight_net = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, src, dst, feat):
        w = torch.softmax(self.weight_net(feat).squeeze(-1), dim=1)
        cov = torch.einsum("bn,bni,bnj->bij", w, src, dst)
        u, s, vh = torch.linalg.svd(cov)
        return u @ vh


def clouds():
    g = torch.Generator().manual_seed(12)
    eye = torch.eye(3)
    octahedron = torch.cat([eye, -eye])
    for i in range(10):
        src = torch.randn(4, 6, 3, generator=g)
        q, _ = torch.linalg.qr(torch.randn(4, 3, 3, generator=g))
        dst = src @ q + 0.05 * torch.randn(4, 6, 3, generator=g)
        feat = torch.randn(4, 6, 1, generator=g)
        if i == 6:
            src[1], dst[1], feat[1] = octahedron, octahedron, 1.0
        yield src, dst, feat


def build():
    torch.manual_seed(0)
    model = Aligner()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def loss_fn(model, batch):
        src, dst, feat = batch
        rot = model(src, dst, feat)
        return (src @ rot - dst).pow(2).sum(-1).mean()

    return dict(model=model, optimizer=optimizer, batches=list(clouds()), loss_fn=loss_fn, steps=10,
                autocast_dtype=None,
                truth=dict(cause="degenerate_linalg_backward", also=("division_by_zero", "bad_input_data"), first_bad_step=6,
                           phase="backward", module="loss", op="aten._linalg_svd", also_op=("aten.div",), line="torch.linalg.svd(cov)",
                           sample=1,
                           repair=("torch.linalg.svd(cov)", "torch.linalg.svd(cov + torch.diag(torch.tensor([1e-3, 2e-3, 3e-3])))")))
