"""A codebook is updated by the mean of the vectors of each code every second step; a code that nobody uses gets 0 / 0.
Written for this.
True cause: the program itself writes NaN into the codebook."""
import torch
import torch.nn as nn


class Codebook(nn.Module):
    def __init__(self, k=4, d=3):
        super().__init__()
        self.register_buffer("codes", torch.tensor([[0.0, 0, 0], [2, 2, 2], [-2, -2, -2], [9, 9, 9]]))

    def forward(self, z):
        idx = torch.cdist(z, self.codes).argmin(1)
        return z + (self.codes[idx] - z).detach(), idx

    @torch.no_grad()
    def refit(self, z, idx):
        one = nn.functional.one_hot(idx, len(self.codes)).float()
        self.codes.copy_((one.T @ z) / one.sum(0)[:, None])


def build():
    torch.manual_seed(3)
    model = nn.ModuleDict({"enc": nn.Linear(5, 3), "vq": Codebook(), "dec": nn.Linear(3, 5)})
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(4)
    data = [(i, torch.randn(12, 5, generator=g) * 2) for i in range(6)]

    def loss_fn(m, b):
        i, x = b
        z = m["enc"](x)
        q, idx = m["vq"](z)
        if i == 3:
            m["vq"].refit(z.detach(), idx)
        return (m["dec"](q) - x).square().mean()

    return dict(model=model, optimizer=opt, batches=data, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="state_overwritten", also=("division_by_zero", "empty_reduction"), module="vq", also_module=("loss",), phase="forward", op="aten.div", first_bad_step=3, loss_finite_at_first_bad_step=True, grads_finite=True, state="vq.codes", poisoned_state=["vq.codes"], line="self.codes.copy_("))
