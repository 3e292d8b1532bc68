"""A detector's IoU loss of two boxes without area."""
import torch, torch.nn as nn, torch.nn.functional as F

class Det(nn.Module):
    def __init__(s): super().__init__(); s.net = nn.Linear(6, 4)
    def forward(s, x): return F.relu(s.net(x))
def iou(a, b):
    inter = (torch.min(a[:, :2], b[:, :2]).clamp(min=0)).prod(-1)
    union = a[:, :2].prod(-1) + b[:, :2].prod(-1) - inter
    return inter / union
def build():
    torch.manual_seed(0); model = Det(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model.net.weight.fill_(0.2); model.net.bias.fill_(0.5)
    batches = [(torch.rand(4, 6, generator=g), torch.rand(4, 4, generator=g) + 0.1) for _ in range(4)]; batches[2][0][1] = -9.0; batches[2][1][1] = 0.0
    def loss_fn(m, b): return (1 - iou(m(b[0]), b[1])).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", where="loss_fn", module="", phase="forward", op="aten.div", first_bad_step=2, line="return inter / union"))
