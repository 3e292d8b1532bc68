"""Keyword spotting: log-mel features, normalised per clip, small conv net.

What goes wrong: one clip is digital silence; the log of its zero energies is -inf and the per-clip
normalisation turns that into NaN. The loop skips a NaN loss, which hides the broken clip and, because
BatchNorm saw the batch, does not keep the running statistics clean.
Follows https://github.com/SeanNaren/deepspeech.pytorch/issues/272 and
https://github.com/bshall/hifigan/issues/4.
True cause: a clip of digital silence has zero mel energies, and the log of zero is -inf."""

import torch
import torch.nn.functional as F
from torch import nn


class LogMel(nn.Module):
    def __init__(self, n_fft=64, n_mels=12):
        super().__init__()
        self.n_fft = n_fft
        self.register_buffer("window", torch.hann_window(n_fft))
        self.register_buffer("bank", torch.rand(n_mels, n_fft // 2 + 1, generator=torch.Generator().manual_seed(0)))

    def forward(self, wav):
        spec = torch.stft(wav, self.n_fft, 32, window=self.window, return_complex=True).abs() ** 2
        logmel = torch.log(self.bank @ spec)
        mean, std = logmel.mean((1, 2), keepdim=True), logmel.std((1, 2), keepdim=True)
        return (logmel - mean) / (std + 1e-5)


class Spotter(nn.Module):
    def __init__(self):
        super().__init__()
        self.frontend = LogMel()
        self.conv = nn.Conv1d(12, 16, 3, padding=1)
        self.bn = nn.BatchNorm1d(16)
        self.fc = nn.Linear(16, 3)

    def forward(self, wav):
        h = torch.relu(self.bn(self.conv(self.frontend(wav))))
        return self.fc(h.mean(-1))


def clips():
    g = torch.Generator().manual_seed(18)
    for i in range(12):
        wav = 0.1 * torch.randn(6, 640, generator=g)
        if i == 4:
            wav[2] = 0.0
        yield wav, torch.randint(0, 3, (6,), generator=g)


def build():
    torch.manual_seed(0)
    model = Spotter()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return dict(model=model, optimizer=optimizer, batches=list(clips()), steps=12, loss_fn=lambda model,
                batch: F.cross_entropy(model(batch[0]), batch[1]), autocast_dtype=None,
                truth=dict(cause="log_of_zero", also=("bad_input_data",), first_bad_step=4, phase="forward", module="frontend",
                           op="aten.log", line="torch.log(self.bank @ spec)", sample=2,
                           repair=("torch.log(self.bank @ spec)", "torch.log(self.bank @ spec + 1e-8)")))
