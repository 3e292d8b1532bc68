"""A detection head's box loss is the mean over the positive anchors; one batch shows an empty scene, so the mean has no element.
True cause: mean of an empty tensor. The objectness term of the same loss is fine."""
import torch, torch.nn as nn

class Head(nn.Module):
    def __init__(s): super().__init__(); s.trunk = nn.Linear(10, 16); s.obj = nn.Linear(16, 1); s.box = nn.Linear(16, 4)
    def forward(s, x): h = torch.relu(s.trunk(x)); return s.obj(h).squeeze(-1), s.box(h)

def build():
    torch.manual_seed(0); model = Head(); opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        pos = torch.rand(2, 12, generator=g) < (0.0 if i == 4 else 0.3)
        batches.append(dict(feat=torch.randn(2, 12, 10, generator=g), pos=pos, box=torch.rand(2, 12, 4, generator=g)))
    def loss_fn(m, b):
        obj, box = m(b["feat"])
        box_loss = (box[b["pos"]] - b["box"][b["pos"]]).abs().mean()
        return nn.functional.binary_cross_entropy_with_logits(obj, b["pos"].float()) + box_loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="empty_reduction", module="loss", phase="forward", op="aten.mean", first_bad_step=4, grads_finite=True))
