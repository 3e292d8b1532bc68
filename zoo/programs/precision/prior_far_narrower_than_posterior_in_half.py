"""A variational model in half precision: the divergence of two Gaussians squares the ratio of their deviations. The prior is learned and has become narrow in one
dimension, so that the square exceeds 65504.
After https://github.com/NVIDIA/apex/issues/812 (the KL of two normals blows up in fp16; the pow(2) of the ratio).
True cause: a square in the loss that overflows in half precision."""
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, d=10, z=4):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d, 24), nn.ELU())
        self.loc, self.raw_scale = nn.Linear(24, z), nn.Linear(24, z)

    def forward(self, x):
        h = self.body(x)
        return self.loc(h), nn.functional.softplus(self.raw_scale(h)) + 1e-3


class Prior(nn.Module):
    def __init__(self, classes=3, z=4):
        super().__init__()
        self.loc = nn.Embedding(classes, z)
        self.log_scale = nn.Embedding(classes, z)
        nn.init.zeros_(self.log_scale.weight)
        with torch.no_grad():
            self.log_scale.weight[2, 1] = -6.5                  # a class whose codes have collapsed


def kl_normal_normal(p_loc, p_scale, q_loc, q_scale):
    var_ratio = (p_scale / q_scale).pow(2)
    t1 = ((p_loc - q_loc) / q_scale).pow(2)
    return 0.5 * (var_ratio + t1 - 1 - var_ratio.log())


def build():
    torch.manual_seed(6)
    model = nn.ModuleDict({"enc": Encoder(), "prior": Prior(), "dec": nn.Linear(4, 10)})
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(7)
    labels = [[0, 1, 1, 0, 1], [1, 0, 0, 1, 0], [0, 1, 2, 0, 1], [0, 0, 1, 1, 0]]
    batches = [{"x": torch.randn(5, 10, generator=g), "c": torch.tensor(c), "eps": torch.randn(5, 4, generator=g)} for c in labels]

    def loss_fn(m, b):
        loc, scale = m["enc"](b["x"])
        recon = (m["dec"](loc + scale * b["eps"]) - b["x"]).square().mean()
        q_loc, q_scale = m["prior"].loc(b["c"]), m["prior"].log_scale(b["c"]).exp()
        kl = kl_normal_normal(*(t.half() for t in (loc, scale, q_loc, q_scale)))
        return recon + 1e-3 * kl.mean().float()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="fp16_loss_overflow", module="loss", phase="forward", op="aten.pow", first_bad_step=2, sample=2,
                           line="var_ratio = (p_scale / q_scale).pow(2)", why="the ratio is about 460 and its square 210000, above 65504"))
