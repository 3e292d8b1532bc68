"""Glow: the invertible 1x1 convolution is pruned in place by a structured pruning hook at step 2 (one row is set to zero), log|det W| is -Inf.
True cause: slogdet of an exactly singular matrix."""
import torch, torch.nn as nn

class InvConv(nn.Module):
    def __init__(s, c=4): super().__init__(); s.w = nn.Parameter(torch.linalg.qr(torch.randn(c, c))[0])
    def forward(s, x): return nn.functional.conv1d(x, s.w[:, :, None]), torch.linalg.slogdet(s.w)[1] * x.shape[-1]
class Glow(nn.Module):
    def __init__(s): super().__init__(); s.mix = nn.ModuleList([InvConv(), InvConv()]); s.net = nn.Conv1d(2, 4, 3, padding=1)
    def forward(s, x):
        total = 0.0
        for mix in s.mix:
            x, ld = mix(x); a, b = x.chunk(2, 1); t, ls = s.net(a).chunk(2, 1); ls = torch.tanh(ls)
            x = torch.cat([a, b * torch.exp(ls) + t], 1); total = total + ld + ls.sum((1, 2))
        return x, total

def build():
    torch.manual_seed(0); model = Glow(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = [(i, torch.randn(3, 4, 6, generator=g)) for i in range(5)]
    def loss_fn(m, b):
        if b[0] == 2:
            with torch.no_grad(): m.mix[1].w[3].zero_()            # "prune the least important channel"
        z, ld = m(b[1]); return (0.5 * (z ** 2).sum((1, 2)) - ld).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="log_of_zero", also=["degenerate_linalg_backward", "state_overwritten"], module="mix.1", phase="forward", op="aten._linalg_slogdet", first_bad_step=2))
