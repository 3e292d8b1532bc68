"""Cosine normalisation with rsqrt(sum + 1e-30): for a padded row the value is 1e15 and fine, the slope is its cube and overflows float32.
True cause: the slope of rsqrt next to zero. It is not exactly at zero, and no message may say so."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(5, 8, bias=False); s.head = nn.Linear(8, 3)
    def forward(s, x):
        z = s.enc(x); return s.head(z * torch.rsqrt(z.square().sum(-1, keepdim=True) + 1e-30))
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 5, generator=g), torch.randint(0, 3, (8,), generator=g)) for _ in range(5)]
    batches[2][0][6] = 0.0
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", module="loss", phase="backward", op="aten.pow", first_bad_step=2,
                           never_said=["exactly zero", "exactly 0", "0 of 8 places"]))
