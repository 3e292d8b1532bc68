"""A vocoder loss compares phases as unit complex numbers, X / |X|; a silent frame has a spectrum of exact zeros.
True cause: complex division by a magnitude of 0, in the loss function."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Conv1d(1, 8, 5, padding=2), nn.Tanh(), nn.Conv1d(8, 1, 5, padding=2))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(3, 1, 32, generator=g), torch.randn(3, 1, 32, generator=g)) for _ in range(4)]
    batches[2][1][1] = 0.0                                                        # a pause in the recording
    def phase(wave):
        spectrum = torch.fft.rfft(wave); return spectrum / spectrum.abs()
    def loss_fn(m, b): return (phase(m(b[0])) - phase(b[1])).abs().square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="forward", op="aten.div", first_bad_step=2))
