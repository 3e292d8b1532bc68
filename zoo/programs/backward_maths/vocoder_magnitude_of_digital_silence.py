"""A small vocoder trained with a multi-resolution STFT magnitude loss written by hand: sqrt(re^2 + im^2). The generator has no biases
and ends in tanh, so a silent mel input gives digital silence. Batch 3 has one: every bin of its spectrogram is exactly zero, the loss
is finite, but the slope of sqrt at zero is not. That is the true cause."""
import torch
from torch import nn


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.pre = nn.Conv1d(5, 16, 3, padding=1, bias=False)
        self.up = nn.ConvTranspose1d(16, 1, 16, stride=8, padding=4, bias=False)

    def forward(self, mel):
        return torch.tanh(self.up(torch.nn.functional.leaky_relu(self.pre(mel), 0.1))).squeeze(1)


class STFTLoss(nn.Module):
    def __init__(self, n_fft):
        super().__init__()
        self.n_fft = n_fft
        self.register_buffer("window", torch.hann_window(n_fft))

    def magnitude(self, wav):
        spec = torch.stft(wav, self.n_fft, self.n_fft // 4, window=self.window, return_complex=True)
        return torch.sqrt(spec.real ** 2 + spec.imag ** 2)

    def forward(self, fake, real):
        return (self.magnitude(fake) - self.magnitude(real)).abs().mean()


class Vocoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.gen = Generator()
        self.stft_loss = nn.ModuleList([STFTLoss(32), STFTLoss(64)])


def loss_fn(model, batch):
    mel, wav = batch
    fake = model.gen(mel)
    return sum(stft(fake, wav) for stft in model.stft_loss)


def build():
    torch.manual_seed(9)
    model = Vocoder()
    batches = [(torch.randn(4, 5, 32), 0.1 * torch.randn(4, 256)) for _ in range(6)]
    batches[3][0][2] = 0.0
    truth = dict(
        cause="singular_gradient_at_zero", first_bad_step=3, phase="backward", module="stft_loss.1", also_module=["stft_loss.0"], op="aten.div",
        line="return torch.sqrt(spec.real ** 2 + spec.imag ** 2)", loss_finite_at_first_bad_step=True, sample=2,
        why="the generated waveform of sample 2 is silent, so sqrt is differentiated at exactly zero",
        repair=("spec.imag ** 2)", "spec.imag ** 2 + 1e-9)"),
    )
    return dict(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=2e-4, betas=(0.8, 0.99)), batches=batches,
                loss_fn=loss_fn, steps=6, autocast_dtype=None, truth=truth)
