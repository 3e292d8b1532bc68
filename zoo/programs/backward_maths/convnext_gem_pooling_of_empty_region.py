"""Image retrieval with ConvNext features and GeM pooling over a foreground region, mean((softplus(x) * region)^p)^(1/p), p = 3. For one image of
batch 2 the segmenter found no foreground: the mean is exactly 0, and the slope of x^(1/3) at 0 is infinite.
True cause: singular gradient at zero; the forward is finite. (The usual clamp(min=eps) is missing.)"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import ConvNextConfig, ConvNextModel


class GeM(nn.Module):
    def __init__(self, p=3.0):
        super().__init__()
        self.p = p

    def forward(self, x, region):
        return (F.softplus(x) * region[:, None]).pow(self.p).mean((2, 3)).pow(1.0 / self.p)


class Retrieval(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = ConvNextModel(ConvNextConfig(num_channels=1, patch_size=2, num_stages=2, hidden_sizes=[8, 12], depths=[1, 1], image_size=16))
        self.gate = nn.Conv2d(12, 6, 1)
        self.pool = GeM()
        self.out = nn.Linear(6, 4)

    def forward(self, image, region):
        f = self.gate(self.net(pixel_values=image).last_hidden_state)
        return self.out(self.pool(f, F.adaptive_max_pool2d(region, f.shape[-2:])))


def build():
    torch.manual_seed(0)
    model = Retrieval()
    opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(4):
        region = torch.zeros(4, 16, 16)
        region[:, 4:12, 4:12] = 1.0
        if i == 2:
            region[2] = 0.0
        batches.append((torch.rand(4, 1, 16, 16, generator=g), region, torch.randint(0, 4, (4,), generator=g)))

    def loss_fn(m, b):
        return F.cross_entropy(m(b[0], b[1]), b[2])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="pool", phase="backward", op="aten.pow", first_bad_step=2,
                           node="PowBackward0", loss_finite_at_first_bad_step=True))
