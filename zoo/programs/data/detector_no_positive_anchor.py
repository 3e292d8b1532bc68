"""One-stage detector: box loss is normalised by the number of positive anchors; an image pair without any object gives 0/0.
Real: focal-loss / RetinaNet / YOLO forks ("nan when image has no boxes"). True cause: division by a count of zero positives."""
import torch, torch.nn as nn

class Detector(nn.Module):
    def __init__(s):
        super().__init__(); s.backbone = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 2, 1), nn.ReLU())
        s.cls = nn.Conv2d(8, 1, 1); s.box = nn.Conv2d(8, 4, 1)
    def forward(s, x): f = s.backbone(x); return {"cls": s.cls(f), "box": s.box(f)}

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Detector(); opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    g = torch.Generator().manual_seed(9); batches = []
    for i in range(8):
        pos = (torch.rand(2, 1, 4, 4, generator=g) > 0.8).float()
        if i == 4: pos.zero_()                                      # two pictures of an empty street
        batches.append(dict(img=torch.randn(2, 3, 16, 16, generator=g), pos=pos, box=torch.randn(2, 4, 4, 4, generator=g)))
    def loss_fn(m, b):
        o = m(b["img"]); c = nn.functional.binary_cross_entropy_with_logits(o["cls"], b["pos"])
        l = nn.functional.l1_loss(o["box"], b["box"], reduction="none").sum(1, keepdim=True)
        return c + (l * b["pos"]).sum() / b["pos"].sum()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="empty_reduction", module="loss", phase="forward", op="aten.div", first_bad_step=4))
