"""CONTROL: the careful forms: double where around sqrt and log, CTC with zero_infinity and an impossible sample, masked mean with clamp(min=1)
over an empty mask, norm of a zero vector (torch defines that gradient as 0)."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.f = nn.Linear(5, 8); s.out = nn.Linear(8, 6)
    def forward(s, x):
        h = s.f(x); pos = h > 0; safe = torch.where(pos, h, torch.ones_like(h)); h = torch.where(pos, torch.sqrt(safe) + 0.01 * torch.log(safe), 0.1 * h)
        return s.out(h)
def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(10):
        tlen = torch.tensor([2, 3]) if i != 4 else torch.tensor([2, 9])     # sample 1 of batch 4 cannot be aligned
        x = torch.randn(2, 7, 5, generator=g); batches.append((x, torch.randint(1, 6, (2, 9), generator=g), tlen, (torch.rand(2, 7, generator=g) > 0.5).float() * (i != 6)))
    def loss_fn(m, b):
        z = m(b[0]); lp = z.log_softmax(-1).transpose(0, 1); c = nn.functional.ctc_loss(lp, b[1], torch.tensor([7, 7]), b[2], zero_infinity=True)
        reg = (z.square().mean(-1) * b[3]).sum() / b[3].sum().clamp(min=1); return c + 0.1 * reg + 0.01 * (z - z.detach()).norm()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=10, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
