"""Image-text contrast: the learned temperature has its own parameter group, with the rate of the biases; its exponential overflows.
After https://github.com/ultralytics/ultralytics/issues/24615 (warmup_bias_lr, a rate of its own for one group; "EMA contains NaN/Inf").
True cause: the learning rate of one parameter group is too high."""
import torch, torch.nn.functional as F
from torch import nn, optim


class Clip(nn.Module):
    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(12, 8), nn.Linear(12, 8)
        self.text.load_state_dict(self.image.state_dict())
        self.logit_scale = nn.Parameter(torch.tensor(0.0))


def build():
    torch.manual_seed(1)
    clip = Clip()
    scale = [p for n, p in clip.named_parameters() if n == "logit_scale"]
    rest = [p for n, p in clip.named_parameters() if n != "logit_scale"]
    opt = optim.Adam([{"params": rest, "lr": 1e-3}, {"params": scale, "lr": 40.0}])
    g = torch.Generator().manual_seed(2)
    batches = [{"img": torch.randn(6, 12, generator=g), "txt": None} for _ in range(5)]
    for b in batches:
        b["txt"] = b["img"] + 0.2 * torch.randn(6, 12, generator=g)

    def contrastive(m, b):
        i, t = F.normalize(m.image(b["img"]), dim=1), F.normalize(m.text(b["txt"]), dim=1)
        scale = m.logit_scale.exp()
        logits = scale * (i @ t.T)
        y = torch.arange(len(logits))
        return (F.cross_entropy(logits, y) + F.cross_entropy(logits.T, y)) / 2

    return dict(model=clip, optimizer=opt, batches=batches, loss_fn=contrastive, steps=30, autocast_dtype=None,
                truth=dict(cause="lr_too_high", also=("exp_overflow",), module="loss", phase="forward", op="aten.exp", first_bad_step=4, line="m.logit_scale.exp()"))
