"""Whisper-like front end: log10 of the power spectrum of a clip that is digital silence."""
import torch, torch.nn as nn, torch.nn.functional as F

class Frontend(nn.Module):
    def __init__(s): super().__init__(); s.register_buffer("mel", torch.rand(33, 12))
    def forward(s, wave):
        frames = wave.unfold(-1, 64, 32); power = torch.fft.rfft(frames).abs() ** 2
        mel = power @ s.mel
        return torch.log10(mel)
class Whisper(nn.Module):
    def __init__(s): super().__init__(); s.frontend = Frontend(); s.conv = nn.Conv1d(12, 16, 3, padding=1); s.head = nn.Linear(16, 5)
    def forward(s, wave): x = s.frontend(wave); return s.head(F.gelu(s.conv(x.transpose(1, 2))).mean(-1))
def build():
    torch.manual_seed(0); model = Whisper(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, 256, generator=g), torch.randint(0, 5, (4,), generator=g)) for _ in range(4)]; batches[3][0][2] = 0
    def loss_fn(m, b): return F.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="frontend", phase="forward", op="aten.log10", first_bad_step=3, line="torch.log10(mel)"))
