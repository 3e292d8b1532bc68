"""Path-length regularisation: the length of the gradient with respect to the latent is sqrt of a mean; for a latent that switches all units off it is sqrt(0).
After https://github.com/NVlabs/stylegan2-ada-pytorch/issues/133 (pl_lengths = pl_grads.square().sum(2).mean(1).sqrt(): non-finite numbers without an epsilon).
True cause: the slope of the square root at zero is infinite."""
import torch
from torch import nn


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(3, 12), nn.Linear(12, 9)
        with torch.no_grad():
            self.fc1.weight.abs_()

    def forward(self, w):
        return self.fc2(torch.relu(self.fc1(w)))


class PathLength(nn.Module):
    def forward(self, img, w, noise):
        (grads,) = torch.autograd.grad((img * noise).sum(), w, create_graph=True)
        lengths = grads.square().sum(1).sqrt()
        return (lengths - 0.3).square().mean()


def build():
    torch.manual_seed(2)
    model = nn.ModuleDict({"G": Generator(), "pl": PathLength()})
    opt = torch.optim.Adam(model["G"].parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(3)
    batches = [(torch.rand(5, 3, generator=g) + 1, torch.randn(5, 9, generator=g)) for _ in range(4)]
    batches[2][0][3] = -30.0

    def loss_fn(m, b):
        w = b[0].clone().requires_grad_(True)
        img = m["G"](w)
        return img.square().mean() + 2.0 * m["pl"](img, w, b[1])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="pl", phase="backward", op="aten.div", first_bad_step=2, loss_finite_at_first_bad_step=True, line="lengths = grads.square()", sample=3))
