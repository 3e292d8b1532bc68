"""Bond angles by acos of the normalised dot product: in one conformer three atoms lie on a line and the cosine is exactly -1.
After https://github.com/atomistic-machine-learning/schnetpack/pull/87 (NaN in angular gradients).
True cause: the slope of acos at its boundary is infinite."""
import torch
import torch.nn as nn


class Angles(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Linear(3, 3, bias=False)
        nn.init.eye_(self.shift.weight)

    def forward(self, a, b):
        u, v = self.shift(a), self.shift(b)
        cos = (u * v).sum(-1) / (u.square().sum(-1) * v.square().sum(-1)).sqrt()
        return torch.acos(cos.clamp(-1, 1))


def build():
    model = nn.ModuleDict({"angles": Angles()})
    model["angles"].shift.weight.requires_grad_(False)
    torch.manual_seed(3)
    model["bond"] = nn.Linear(3, 3)
    opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    g = torch.Generator().manual_seed(4)
    batches = [(torch.randn(5, 3, generator=g), torch.randn(5, 3, generator=g), 0) for _ in range(3)]
    batches.append((torch.randn(5, 3, generator=g), None, 1))

    def loss_fn(m, batch):
        x, other, line = batch
        u = m["bond"](x)
        v = -u if line else other                     # a linear molecule: the two bonds are opposite
        theta = m["angles"](u, v)
        return (theta - 1.9).square().mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="arccos_boundary", module="angles", phase="backward", op="aten.mul", also_op=("aten.rsqrt", "aten.div"), first_bad_step=3, loss_finite_at_first_bad_step=True, line="torch.acos(cos.clamp(-1, 1))"))
