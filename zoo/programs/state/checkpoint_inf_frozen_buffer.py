"""A frozen backbone in eval mode is loaded from a checkpoint whose BatchNorm variance holds Inf at one channel and whose mean holds NaN; only
the head is trained, so no gradient of the backbone shows anything.
True cause: corrupt checkpoint (backbone.1.running_mean and running_var)."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s):
        super().__init__(); s.backbone = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.SiLU()).requires_grad_(False); s.head = nn.Linear(4, 3)
    def forward(s, x): s.backbone.eval(); return s.head(s.backbone(x).mean((2, 3)))

def build():
    torch.manual_seed(0); model = Net(); saved = {k: v.clone() for k, v in model.state_dict().items()}
    saved["backbone.1.running_var"][2] = float("inf"); saved["backbone.1.running_mean"][2] = float("nan")
    model.load_state_dict(saved); opt = torch.optim.SGD(model.head.parameters(), lr=0.1); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, 1, 6, 6, generator=g), torch.randint(0, 3, (4,), generator=g)) for _ in range(2)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=1, autocast_dtype=None,
                truth=dict(cause="corrupt_checkpoint", module="backbone.1", phase="state", op="aten.native_batch_norm", first_bad_step=0, state="backbone.1.running_mean"))
