"""Log-mel features without a floor: one clip is digital silence, all powers are exactly 0, and their log is -inf.
After https://github.com/SeanNaren/deepspeech.pytorch/issues/272 (an audio whose value is always 0 gives a NaN loss).
True cause: the logarithm of zero."""
import torch
from torch import nn


class LogMel(nn.Module):
    def __init__(self, n_fft=32, n_mels=6):
        super().__init__()
        self.register_buffer("window", torch.hann_window(n_fft))
        self.register_buffer("fb", torch.rand(n_fft // 2 + 1, n_mels, generator=torch.Generator().manual_seed(0)))
        self.n_fft = n_fft

    def forward(self, wav):
        frames = wav.unfold(1, self.n_fft, self.n_fft // 2) * self.window
        power = torch.fft.rfft(frames).abs().square()
        return torch.log10(power @ self.fb)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.front, self.fc = LogMel(), nn.Linear(6, 3)

    def forward(self, wav):
        return self.fc(self.front(wav)).mean(1)


def build():
    torch.manual_seed(0)
    model = Tagger()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(3)
    clips = [torch.randn(4, 160, generator=g) * 0.1 for _ in range(4)]
    clips[2][0] = 0.0
    batches = [[c, torch.tensor([0, 1, 2, 0])] for c in clips]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]), steps=4, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="front", phase="forward", op="aten.log10", first_bad_step=2, line="torch.log10(power @ self.fb)", sample=0))
