"""CONTROL: ConvNext with GeM pooling, mean(relu(x)^p)^(1/p), and a channel that is dark everywhere: the slope of x^(1/3) at 0 is infinite and
there is NaN inside the backward, but relu's backward selects 0 for every dark pixel. All parameter gradients are finite."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers import ConvNextConfig, ConvNextModel


class GeM(nn.Module):
    def __init__(self, p=3.0):
        super().__init__()
        self.p = p

    def forward(self, x):
        return torch.relu(x).pow(self.p).mean((2, 3)).pow(1.0 / self.p)


class Retrieval(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = ConvNextModel(ConvNextConfig(num_channels=1, patch_size=2, num_stages=2, hidden_sizes=[8, 12], depths=[1, 1], image_size=16))
        self.gate = nn.Conv2d(12, 6, 1)
        self.pool = GeM()
        self.out = nn.Linear(6, 4)

    def forward(self, image, off):
        f = self.gate(self.net(pixel_values=image).last_hidden_state)
        return self.out(self.pool(f - off[:, :, None, None]))


def build():
    torch.manual_seed(0)
    model = Retrieval()
    with torch.no_grad():
        model.gate.bias.fill_(4.0)
    opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(4):
        off = torch.zeros(4, 6)
        if i == 2:
            off[2, 3] = 50.0                                     # per-camera dark level: channel 3 of this image is dark
        batches.append((torch.rand(4, 1, 16, 16, generator=g), off, torch.randint(0, 4, (4,), generator=g)))

    def loss_fn(m, b):
        return F.cross_entropy(m(b[0], b[1]), b[2])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
