"""An implicit image starts as black and is fitted with a gradient magnitude similarity: the root of the summed squared image gradients, zero everywhere at the
first step.
After https://github.com/photosynthesis-team/piq/issues/308 (GMSD gives NaN gradients for all-zero predictions; the root of the gradient map).
True cause: the slope of the root at zero."""
import torch
import torch.nn.functional as F
from torch import nn

PREWITT = torch.tensor([[1.0, 0.0, -1.0]] * 3) / 3
KERNELS = torch.stack([PREWITT, PREWITT.t()])[:, None]


def gradient_map(image):
    grads = F.conv2d(image, KERNELS, padding=1)
    return torch.sqrt(torch.sum(grads ** 2, dim=1, keepdim=True))


def gmsd(x, y, t=170.0 / 255 ** 2):
    a, b = gradient_map(x)[..., 1:-1, 1:-1], gradient_map(y)[..., 1:-1, 1:-1]
    similarity = (2 * a * b + t) / (a.square() + b.square() + t)
    return similarity.flatten(1).std(1).mean() + F.l1_loss(x, y)


class FourierImage(nn.Module):
    def __init__(self, size=12, modes=6):
        super().__init__()
        yx = torch.stack(torch.meshgrid(torch.linspace(0, 1, size), torch.linspace(0, 1, size), indexing="ij"), -1)
        frequencies = torch.arange(1, modes + 1).float()
        phase = 6.2831853 * yx[..., None] * frequencies
        self.register_buffer("features", torch.cat([phase.sin(), phase.cos()], -1).flatten(2))
        self.decoder = nn.Linear(self.features.shape[-1], 1)
        nn.init.zeros_(self.decoder.weight)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, n):
        return torch.tanh(self.decoder(self.features)).permute(2, 0, 1)[None].expand(n, -1, -1, -1)


def build():
    torch.manual_seed(0)
    model = nn.Sequential(FourierImage())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    g = torch.Generator().manual_seed(1)
    batches = [torch.rand(2, 1, 12, 12, generator=g) for _ in range(3)]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, y: gmsd(m(len(y)), y), steps=3, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", also=("zero_times_inf",), module="loss", phase="backward", op="aten.div", also_op=("aten.mul",), first_bad_step=0,
                           loss_finite_at_first_bad_step=True, line="return torch.sqrt(torch.sum(grads ** 2, dim=1, keepdim=True))",
                           why="the image is zero at the start, so all squared gradients inside it are zero"))
