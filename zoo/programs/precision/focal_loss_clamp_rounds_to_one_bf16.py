"""Focal loss under bfloat16 autocast. The author clamps the probability to [1e-4, 1 - 1e-4], but in bfloat16 1 - 1e-4 rounds to 1.0:
for a confident sample p is exactly 1 and log(1 - p) is -inf. In float32 the same line is safe.
True cause: the epsilon vanishes in bfloat16. TRAP: there is a clamp, and the logits (about 9) are unremarkable."""
import torch
import torch.nn as nn


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(10, 32), nn.GELU())
        self.score = nn.Linear(32, 1)

    def forward(self, x):
        return self.score(self.backbone(x)).squeeze(-1)


def focal(logits, y, gamma=2.0, alpha=0.25, eps=1e-4):
    p = torch.sigmoid(logits).clamp(eps, 1 - eps)
    pos = -alpha * (1 - p) ** gamma * torch.log(p) * y
    neg = -(1 - alpha) * p ** gamma * torch.log(1 - p) * (1 - y)
    return (pos + neg).float().mean()


def build():
    torch.manual_seed(0)
    model = Detector()
    with torch.no_grad():                                   # a detector that is already sure of one direction
        model.score.weight.zero_()
        model.score.weight[0, 3] = 1.0
        model.backbone[0].weight[3].zero_()
        model.backbone[0].weight[3, 0] = 1.0
        model.backbone[0].bias[3] = 0.0
        model.score.bias.zero_()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(5):
        x = torch.randn(12, 10, generator=g).clamp(-2.5, 2.5)
        if i == 2:
            x[7, 0] = 9.0
        batches.append((x, (x[:, 0] > 0.5).float() * (torch.arange(12) != 7)))

    def loss_fn(m, b):
        return focal(m(b[0]), b[1])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=torch.bfloat16,
                truth=dict(cause="eps_underflow_half", module="loss", phase="forward", op="aten.log", first_bad_step=2, trap=True))
