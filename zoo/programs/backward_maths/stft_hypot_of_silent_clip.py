"""Speech enhancement with a spectral magnitude loss |S| = hypot(re, im): a silent clip gives re = im = 0, backward is 0/0.
Real: "multi-resolution STFT loss gives nan gradients on silence". True cause: singular gradient of the magnitude at zero."""
import math, torch, torch.nn as nn

class Masker(nn.Module):
    def __init__(s): super().__init__(); s.net = nn.Sequential(nn.Conv1d(1, 8, 9, padding=4), nn.ReLU(), nn.Conv1d(8, 1, 9, padding=4), nn.Sigmoid())
    def forward(s, w): return w * s.net(w[:, None])[:, 0]

def make_stft_loss(n=16):
    k, t = torch.arange(n // 2 + 1)[:, None], torch.arange(n)[None]; C, S = torch.cos(2 * math.pi * k * t / n), torch.sin(2 * math.pi * k * t / n)
    def mag(w): f = w.unfold(-1, n, n // 2); return torch.hypot(f @ C.T, f @ S.T)
    return lambda a, b: (mag(a) - mag(b)).abs().mean()

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Masker(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); stft_loss = make_stft_loss()
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(7):
        clean = torch.randn(3, 96, generator=g) * 0.3; noisy = clean + 0.1 * torch.randn(3, 96, generator=g)
        if i == 4: clean[0] = 0; noisy[0] = 0
        batches.append((noisy, clean))
    def loss_fn(m, b): y = m(b[0]); return stft_loss(y, b[1]) + (y - b[1]).abs().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="loss", phase="backward", op="aten.div", first_bad_step=4, loss_finite_at_first_bad_step=True))
