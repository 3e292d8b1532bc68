"""Quantisation-aware training for hardware with shifts only: the scale of an activation is the power of two above its largest value. For a batch that switches a gate
off all activations are zero.
After https://github.com/ml-explore/mlx/pull/1028 (quantisation of all zeros: a scale of 0 gives nan; there is a minimum now).
True cause: the logarithm of a largest value of zero."""
import torch
from torch import nn


class ShiftQuant(nn.Module):
    def __init__(self, bits=8):
        super().__init__()
        self.levels = 2 ** (bits - 1)

    def forward(self, x):
        exponent = torch.ceil(torch.log2(x.detach().abs().amax()))
        scale = torch.exp2(exponent) / self.levels
        q = torch.round(x / scale).clamp(-self.levels, self.levels - 1) * scale
        return x + (q - x).detach()


class GatedBranch(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv, self.quant = nn.Conv2d(channels, channels, 3, padding=1, bias=False), ShiftQuant()

    def forward(self, x, gate):
        return self.quant(torch.relu(self.conv(x)) * gate)


class KeywordNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 6, 3, padding=1)
        self.branch = GatedBranch(6)
        self.head = nn.Linear(6, 4)

    def forward(self, spectrogram, speech):
        h = torch.relu(self.stem(spectrogram))
        h = h + self.branch(h, speech)
        return self.head(h.mean((2, 3)))


def build():
    torch.manual_seed(0)
    model = KeywordNet()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    g = torch.Generator().manual_seed(8)
    batches = []
    for i in range(5):
        speech = torch.zeros(4, 1, 1, 1) if i == 2 else (torch.rand(4, 1, 1, 1, generator=g) < 0.9).float()
        batches.append((torch.rand(4, 1, 6, 6, generator=g), speech, torch.randint(0, 4, (4,), generator=g)))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: nn.functional.cross_entropy(m(b[0], b[1]), b[2]), steps=5, autocast_dtype=None,
                truth=dict(cause="log_of_zero", also=("division_by_zero",), module="branch.quant", phase="forward", op="aten.log2", also_op=("aten.div",), first_bad_step=2,
                           line="torch.log2(x.detach().abs().amax())", why="batch 2 holds background noise only, so the gated branch is zero: log2(0) is -inf, the scale 0, 0 / 0 NaN"))
