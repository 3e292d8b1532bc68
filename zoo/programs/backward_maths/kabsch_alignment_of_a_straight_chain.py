"""Protein structure prediction with an RMSD loss after Kabsch alignment: the rotation comes from the SVD of the covariance of predicted
and true coordinates. In batch 2 the true fragment is a straight chain along x: the covariance has rank one and two singular values are
exactly zero. Forward is finite, the backward of the SVD divides by their difference. That is the true cause."""
import torch
from torch import nn


class Predictor(nn.Module):
    def __init__(self, n=6):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, n * 3))

    def forward(self, seq):
        return self.net(seq).view(len(seq), -1, 3)


class KabschRMSD(nn.Module):
    def forward(self, pred, true):
        p, t = pred - pred.mean(1, keepdim=True), true - true.mean(1, keepdim=True)
        cov = p.transpose(1, 2) @ t
        u, _, vh = torch.linalg.svd(cov)
        sign = torch.det(u @ vh).sign().detach()
        flip = torch.stack([torch.ones_like(sign), torch.ones_like(sign), sign], -1)
        rot = (u * flip[:, None]) @ vh
        return ((p @ rot - t).pow(2).sum(-1).mean(-1) + 1e-8).sqrt().mean()


class Folding(nn.Module):
    def __init__(self):
        super().__init__()
        self.predictor, self.rmsd = Predictor(), KabschRMSD()


def loss_fn(model, batch):
    return model.rmsd(model.predictor(batch[0]), batch[1])


def build():
    torch.manual_seed(12)
    model = Folding()
    batches = [(torch.randn(4, 8), torch.randn(4, 6, 3) * 3) for _ in range(5)]
    batches[2][1][1] = 0.0
    batches[2][1][1, :, 0] = torch.arange(6) * 4.0
    truth = dict(
        cause="degenerate_linalg_backward", first_bad_step=2, phase="backward", module="rmsd", op="aten.div", also_op=["aten.reciprocal", "aten.mul"],
        line="u, _, vh = torch.linalg.svd(cov)", loss_finite_at_first_bad_step=True, sample=1,
        why="the covariance of sample 1 has rank one: two singular values are zero and the backward of the SVD divides by their gap",
        repair=("torch.linalg.svd(cov)", "torch.linalg.svd(cov + torch.diag(torch.tensor([1e-2, 2e-2, 4e-2])))"),
    )
    return dict(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-3), batches=batches, loss_fn=loss_fn, steps=5,
                autocast_dtype=None, truth=truth)
