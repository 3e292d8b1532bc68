"""A discrete VAE with Gumbel-softmax codes; the uniform noise comes from an 8-bit table, so u = 255/255 = 1 occurs: -log(-log(1)) is +Inf.
True cause: log of an exact zero in the noise."""
import torch, torch.nn as nn

class Quantise(nn.Module):
    def __init__(s): super().__init__(); s.codes = nn.Parameter(torch.randn(6, 4) * 0.3)
    def forward(s, logits, u):
        gumbel = -torch.log(-torch.log(u))
        return torch.softmax((logits + gumbel) / 0.7, -1) @ s.codes
class DVae(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(8, 6); s.quant = Quantise(); s.dec = nn.Linear(4, 8)
    def forward(s, x, u): return s.dec(s.quant(s.enc(x), u))

def build():
    torch.manual_seed(0); model = DVae(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        raw = torch.randint(1, 255, (5, 6), generator=g)
        if i == 4: raw[3, 2] = 255
        batches.append((torch.randn(5, 8, generator=g), raw / 255))
    def loss_fn(m, b): return nn.functional.mse_loss(m(*b), b[0])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="quant", phase="forward", op="aten.log", first_bad_step=4))
