"""Focal loss with gamma = 0.5 on saturated probabilities: (1 - p) ** 0.5 has an infinite slope where p is exactly 1.
Threads: kornia/kornia#918.
True cause: gradient of x**a, a < 1, at zero."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU()); s.cls = nn.Linear(8, 1)
    def forward(s, x): return s.cls(s.body(x)).squeeze(-1)

def focal(logit, y, gamma=0.5, eps=1e-6):
    p = torch.sigmoid(logit)
    return (-torch.pow(1.0 - p, gamma) * y * torch.log(p + eps) - torch.pow(p + eps, gamma) * (1 - y) * torch.log(1 - p + eps)).mean()

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    with torch.no_grad(): model.body[0].weight.abs_(); model.cls.weight.abs_()
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        x = torch.rand(4, 4, generator=g)
        if i == 2: x[0] = 300.0                                # an easy positive far from the boundary
        batches.append((x, torch.tensor([1.0, 0.0, 1.0, 0.0])))
    def loss_fn(m, b): return focal(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="loss", phase="backward", op="aten.pow", also_op=["aten.mul"], first_bad_step=2, loss_finite_at_first_bad_step=True))
