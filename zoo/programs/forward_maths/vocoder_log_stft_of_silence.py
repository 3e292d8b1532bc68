"""Vocoder with a log-magnitude STFT loss: batch 3 holds a clip of digital silence, |STFT| is exactly 0, log(0) = -Inf."""
import torch, torch.nn as nn

class LogMag(nn.Module):
    def __init__(self, n=64):
        super().__init__(); self.n = n; self.register_buffer("win", torch.hann_window(n))
    def forward(self, wav):
        fr = wav.unfold(-1, self.n, self.n // 2) * self.win
        z = torch.fft.rfft(fr)                     # complex
        return torch.log(torch.sqrt(z.real ** 2 + z.imag ** 2))

class Vocoder(nn.Module):
    def __init__(self):
        super().__init__(); self.up = nn.ConvTranspose1d(20, 8, 16, stride=8, padding=4); self.out = nn.Conv1d(8, 1, 7, padding=3)
        self.spec = LogMag()
    def forward(self, mel): return torch.tanh(self.out(torch.nn.functional.leaky_relu(self.up(mel), 0.1))).squeeze(1)

def build():
    torch.manual_seed(3); model = Vocoder(); opt = torch.optim.AdamW(model.parameters(), lr=2e-4, betas=(0.8, 0.99))
    g = torch.Generator().manual_seed(1); data = []
    for k in range(5):
        wav = torch.randn(3, 256, generator=g) * 0.1
        if k == 3: wav[1] = 0.0                    # a silent clip
        data.append({"mel": torch.randn(3, 20, 32, generator=g), "wav": wav})
    def loss_fn(m, b):
        y = m(b["mel"]); return (m.spec(y) - m.spec(b["wav"])).abs().mean() + 10 * (y - b["wav"]).abs().mean()
    return dict(model=model, optimizer=opt, batches=data, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="spec", phase="forward", op="aten.log", first_bad_step=3,
                           loss_finite_at_first_bad_step=False, grads_finite=True, why="The magnitude spectrum of a silent clip is exactly 0 and its log is -Inf."))
