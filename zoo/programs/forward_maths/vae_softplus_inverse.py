"""A VAE decoder that stores its noise in the softplus domain: on one dataset the scale is 150 (sensor counts), and log(expm1(150)) overflows in float32.
True cause: expm1 of a large finite value."""
import torch, torch.nn as nn

class Vae(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(6, 4); s.dec = nn.Linear(2, 6); s.raw = nn.Linear(1, 1, bias=False); nn.init.ones_(s.raw.weight)
    def forward(s, x, scale, eps):
        mu, logvar = s.enc(x).chunk(2, -1); z = mu + eps * torch.exp(0.5 * logvar)
        inverse = torch.log(torch.expm1(s.raw(scale)))             # softplus^-1
        sigma = nn.functional.softplus(inverse)
        nll = (0.5 * ((s.dec(z) - x) / sigma) ** 2 + torch.log(sigma)).mean()
        return nll - 0.5 * (1 + logvar - mu ** 2 - logvar.exp()).mean()

def build():
    torch.manual_seed(0); model = Vae(); opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        k = 150.0 if i == 4 else 1.0 + i
        batches.append((torch.randn(5, 6, generator=g), torch.full((5, 1), k), torch.randn(5, 2, generator=g)))
    def loss_fn(m, b): return m(*b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="exp_overflow", also=["input_out_of_scale"], module="loss", phase="forward", op="aten.expm1", first_bad_step=4))
