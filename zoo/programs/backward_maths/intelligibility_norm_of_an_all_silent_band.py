"""A speech enhancer trains on an intelligibility index: band energies are normalised by their norm, with the epsilon behind the root. For a clip that the mask has
silenced in one band the norm is zero, and its gradient is not finite.
After https://github.com/mpariente/pytorch_stoi/pull/14 (EPS was added after the root; it has to be summed before sqrt).
True cause: the slope of the root at zero."""
import torch
from torch import nn

EPS = 1e-8


def band_energies(spec, bands):
    return torch.einsum("kf,bft->bkt", bands, spec.square())


def row_normalise(x):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (torch.sqrt(centred.square().sum(-1, keepdim=True)) + EPS)


def index(clean, enhanced, bands):
    c, e = row_normalise(band_energies(clean, bands)), row_normalise(band_energies(enhanced, bands))
    return (c * e).sum(-1).mean()


class MaskNet(nn.Module):
    def __init__(self, bins=12):
        super().__init__()
        self.conv = nn.Conv1d(bins, 16, 3, padding=1)
        self.mask = nn.Conv1d(16, bins, 1)

    def forward(self, noisy):
        return noisy * torch.sigmoid(self.mask(torch.relu(self.conv(noisy))))


def build():
    torch.manual_seed(0)
    model = MaskNet()
    bands = torch.zeros(3, 12)
    for k in range(3):
        bands[k, 4 * k:4 * k + 4] = 1.0
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(5)
    clips = []
    for i in range(6):
        clean = torch.rand(3, 12, 10, generator=g)
        noisy = clean + 0.3 * torch.rand(3, 12, 10, generator=g)
        if i == 4:
            noisy[2, 8:] = 0.0                            # a telephone recording: nothing above 3.4 kHz
        clips.append({"clean": clean, "noisy": noisy})

    def loss_fn(m, clip):
        return 1 - index(clip["clean"], m(clip["noisy"]), bands)

    return dict(model=model, optimizer=opt, batches=clips, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", also=("zero_times_inf",), module="loss", phase="backward", op="aten.div", also_op=("aten.mul",), first_bad_step=4, sample=2,
                           loss_finite_at_first_bad_step=True, line="torch.sqrt(centred.square().sum(-1, keepdim=True)) + EPS",
                           why="the upper band of clip 2 is zero at all times, so the norm under the root is 0"))
