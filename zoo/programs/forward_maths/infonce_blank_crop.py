"""Contrastive pre-training: random crops, an encoder without biases, and a hand-written z / ||z||. One crop shows only the black
letterbox, its embedding is exactly 0, and 0 / 0 is NaN.
True cause: division by a norm of exactly zero (no eps as in F.normalize)."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class L2(nn.Module):
    def forward(s, z): return z / z.pow(2).sum(-1, keepdim=True).sqrt()
class Encoder(nn.Module):
    def __init__(s):
        super().__init__(); s.conv = nn.Conv2d(1, 8, 3, bias=False); s.proj = nn.Linear(8, 16, bias=False); s.unit = L2()
    def forward(s, x): return s.unit(s.proj(nn.functional.leaky_relu(s.conv(x)).mean((2, 3))))

def build():
    torch.manual_seed(5); model = Encoder(); opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    g = torch.Generator().manual_seed(2); batches = []
    for i in range(7):
        img = torch.rand(6, 1, 12, 12, generator=g); v1, v2 = img[..., 2:10, 2:10].clone(), img[..., :8, 4:].clone()
        if i == 4: v2[3] = 0.0                                             # the crop hit the letterbox
        batches.append(dict(view1=v1, view2=v2))
    def loss_fn(m, b):
        logits = m(b["view1"]) @ m(b["view2"]).t() / 0.2; y = torch.arange(len(logits))
        return (nn.functional.cross_entropy(logits, y) + nn.functional.cross_entropy(logits.t(), y)) / 2
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="unit", phase="forward", op="aten.div", first_bad_step=4))
