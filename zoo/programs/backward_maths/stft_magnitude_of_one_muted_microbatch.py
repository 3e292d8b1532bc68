"""Speech enhancement with four micro-batches per step and an STFT loss: in one micro-batch the padded end of the clip is multiplied by 0, and the magnitude is sqrt(re^2 + im^2).
True cause: gradient of sqrt at zero, from the silent frames of that micro-batch; the loss is finite."""
import torch, torch.nn as nn

class Enhancer(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Conv1d(1, 8, 5, padding=2); s.b = nn.Conv1d(8, 1, 5, padding=2)
    def forward(s, x, keep): return s.b(torch.relu(s.a(x[:, None]))).squeeze(1) * keep

def magnitude(x):
    z = torch.view_as_real(torch.stft(x, 16, 8, window=torch.ones(16), center=False, return_complex=True))
    return torch.sqrt(z.pow(2).sum(-1))

def build():
    torch.manual_seed(0); model = Enhancer(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(4):
        micro = []
        for k in range(4):
            x = torch.randn(2, 64, generator=g); keep = torch.ones(2, 64)
            if (i, k) == (2, 1): keep[1, 32:] = 0
            micro.append((x, x + 0.3 * torch.randn(2, 64, generator=g), keep))
        batches.append(micro)
    def loss_fn(m, micro):
        total = 0.0
        for clean, noisy, keep in micro: total = total + nn.functional.l1_loss(magnitude(m(noisy, keep)), magnitude(clean * keep)) / len(micro)
        return total
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="loss", phase="backward", op="aten.div", also_op=["aten.sqrt"], first_bad_step=2, loss_finite_at_first_bad_step=True))
