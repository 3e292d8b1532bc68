"""Source separation with a scale-invariant ratio. In one excerpt the bass is silent: the projection divides by the energy of the target.
After https://github.com/csteinmetz1/auraloss/issues/25 (the SI-SDR loss is NaN in a few places in training, and the model never recovers).
True cause: division by an energy of zero."""
import torch
from torch import nn

STEMS = ("vocals", "drums", "bass")


class Separator(nn.Module):
    def __init__(self, n_filters=12, kernel=8, stride=4):
        super().__init__()
        self.encode = nn.Conv1d(1, n_filters, kernel, stride, bias=False)
        self.masks = nn.Sequential(nn.Conv1d(n_filters, 24, 3, padding=1), nn.PReLU(), nn.Conv1d(24, n_filters * len(STEMS), 1))
        self.decode = nn.ConvTranspose1d(n_filters, 1, kernel, stride, bias=False)

    def forward(self, mix):
        z = torch.relu(self.encode(mix[:, None]))
        masks = torch.sigmoid(self.masks(z)).unflatten(1, (len(STEMS), -1))
        return {s: self.decode(z * masks[:, i]).squeeze(1) for i, s in enumerate(STEMS)}


def si_sdr(estimate, target, eps=1e-8):
    target = target - target.mean(-1, keepdim=True)
    estimate = estimate - estimate.mean(-1, keepdim=True)
    alpha = (estimate * target).sum(-1, keepdim=True) / target.square().sum(-1, keepdim=True)
    projected = alpha * target
    noise = estimate - projected
    return 10 * torch.log10(projected.square().sum(-1) / (noise.square().sum(-1) + eps) + eps)


def build():
    torch.manual_seed(0)
    model = Separator()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(7)
    songs = []
    for i in range(5):
        stems = {s: torch.randn(3, 80, generator=g) * 0.3 for s in STEMS}
        if i == 3:
            stems["bass"][1] = 0.0                       # the intro
        songs.append(stems)

    def loss_fn(m, stems):
        out = m(sum(stems.values()))
        return {s: -si_sdr(out[s], stems[s]).mean() for s in STEMS}

    return dict(model=model, optimizer=opt, batches=songs, loss_fn=lambda m, b: sum(loss_fn(m, b).values()) / len(STEMS), steps=5, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="forward", op="aten.div", first_bad_step=3, sample=1,
                           line="alpha = (estimate * target).sum(-1, keepdim=True) /", why="the bass of excerpt 1 is silent, so its energy is 0: 0 / 0"))
