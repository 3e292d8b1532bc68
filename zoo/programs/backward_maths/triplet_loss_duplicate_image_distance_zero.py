"""Face embedding with a hand-written triplet loss on Euclidean distances.

What goes wrong: for one triplet anchor and positive are the same file; their distance is sqrt(0), the
loss is fine, its gradient is NaN.
Follows https://github.com/adambielski/siamese-triplet/issues/18 and
https://github.com/huggingface/sentence-transformers/pull/4033.
True cause: anchor and positive of one triplet are identical, and the derivative of the square root at zero is
infinite."""

import torch
from torch import nn


class FaceNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 12))

    def forward(self, x):
        return nn.functional.normalize(self.backbone(x), dim=1)


class TripletLoss(nn.Module):
    def __init__(self, margin=0.3):
        super().__init__()
        self.margin = margin

    @staticmethod
    def distance(a, b):
        return torch.sqrt(torch.sum((a - b) ** 2, dim=1))

    def forward(self, anchor, positive, negative):
        gap = self.distance(anchor, positive) - self.distance(anchor, negative) + self.margin
        return gap.relu().mean()


def triplets():
    g = torch.Generator().manual_seed(91)
    for i in range(16):
        person = torch.randn(2, 14, 30, generator=g)
        anchor = person[0] + 0.3 * torch.randn(14, 30, generator=g)
        positive = person[0] + 0.3 * torch.randn(14, 30, generator=g)
        if i == 9:
            positive[8] = anchor[8]
            person[1, 8] = anchor[8] + 0.01  # and the negative is close, so the triplet is active
        yield anchor, positive, person[1]


def build():
    torch.manual_seed(0)
    model = FaceNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = TripletLoss()

    def loss_fn(model, batch):
        return criterion(*(model(x) for x in batch))

    return dict(model=model, optimizer=optimizer, batches=list(triplets()), loss_fn=loss_fn, steps=16,
                autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", also=("bad_input_data",), first_bad_step=9, phase="backward",
                           module="loss", op="aten.sqrt", also_op=("aten.div",), line="torch.sqrt(torch.sum((a - b) ** 2", sample=8,
                           repair=("torch.sqrt(torch.sum((a - b) ** 2, dim=1))", "torch.sqrt(torch.sum((a - b) ** 2, dim=1) + 1e-12)")))
