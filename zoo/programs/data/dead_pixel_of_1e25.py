"""One raw frame of a telescope has a saturated pixel that was written as 1e25; the squared error of this pixel overflows.
Written for this.
True cause: one value of the batch is out of scale."""
import torch
import torch.nn as nn


class Denoise(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.LeakyReLU(), nn.Conv2d(6, 1, 3, padding=1))

    def forward(self, x):
        return x + self.f(x)


def build():
    torch.manual_seed(5)
    net = Denoise()
    opt = torch.optim.Adam(net.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(6)
    frames = torch.rand(5, 3, 1, 8, 8, generator=g)
    frames[3, 1, 0, 4, 4] = 1e25

    def loss_fn(m, clean):
        noisy = clean + 0.01
        err = m(noisy) - clean
        return (err ** 2).mean()

    return dict(model=net, optimizer=opt, batches=list(frames), loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="input_out_of_scale", also=("bad_input_data",), module="loss", phase="forward", op="aten.pow", first_bad_step=3, line="return (err ** 2).mean()", sample=1))
