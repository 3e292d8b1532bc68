"""Binary segmentation with a hand-written BCE. The dataset marks void pixels with 255 (as Pascal VOC does) and nobody removes them:
the target 255 pulls the logits up without end, after the first update the sigmoid is exactly 1 and log(1 - p) is -inf.
True cause: a label outside [0, 1]. With void pixels set to 0 or 1 the same run stays finite."""
import torch
import torch.nn as nn


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Conv2d(3, 8, 3, padding=1)
        self.dec = nn.Conv2d(8, 1, 1)

    def forward(self, x):
        return torch.sigmoid(self.dec(torch.relu(self.enc(x)))).squeeze(1)


def bce(p, y):
    return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()


def build():
    torch.manual_seed(0)
    model = Segmenter()
    opt = torch.optim.SGD(model.parameters(), lr=0.5)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(5):
        x = torch.rand(4, 3, 10, 10, generator=g)
        y = (x.mean(1) > 0.5).float()
        if i >= 1:
            y[:, 0, :] = 255.0                    # the void border
            y[:, :, 0] = 255.0
        batches.append((x, y))

    def loss_fn(m, b):
        return bce(m(b[0]), b[1])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="label_out_of_range", module="loss", phase="forward", op="aten.log", first_bad_step=2))
