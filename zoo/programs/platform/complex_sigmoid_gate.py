"""Complex-valued network for MRI: a gate sigmoid(z) on complex64. For Re z far below zero the true value is about 0 (as for reals), but the
CPU kernel computes 1 / (1 + exp(-z)) without care and returns NaN; 0.5 * (1 + tanh(z / 2)) on the same input is finite.
True cause: the kernel of one operation; its recorded input is finite and harmless."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class Gate(nn.Module):
    def __init__(s, d): super().__init__(); s.w = nn.Parameter(torch.complex(0.3 * torch.randn(d, d), 0.3 * torch.randn(d, d)))
    def forward(s, z): return z * torch.sigmoid(z @ s.w)
class Recon(nn.Module):
    def __init__(s, d=8): super().__init__(); s.gate = Gate(d); s.read = nn.Linear(2 * d, d)
    def forward(s, k):
        z = s.gate(torch.fft.ifft(k, dim=-1)); return s.read(torch.view_as_real(z).flatten(1))

def build():
    torch.manual_seed(32); model = Recon(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(36); batches = []
    for i in range(7):
        img = torch.randn(6, 8, generator=g)
        if i == 4: img[2] *= 200                                                 # a bright slice, within the scanner's range
        batches.append((torch.fft.fft(img.to(torch.complex64), dim=-1), img))
    def loss_fn(m, b): return nn.functional.l1_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="backend_or_kernel_bug", module="gate", phase="forward", op="aten.sigmoid", first_bad_step=4))
