"""VQ codebook (a buffer), refreshed inside forward: at step 3 the restart writes sum/count for ALL codes, also for those without members: 0/0.
The quantised values of that step were read before, so loss and gradients are finite; argmin falls for the NaN code one step later."""
import torch, torch.nn as nn

class VQ(nn.Module):
    def __init__(s, k=8, d=3): super().__init__(); s.register_buffer("codes", torch.randn(k, d)); s.codes[k - 1] = 50.0; s.calls = 0
    def forward(s, z):
        i = torch.cdist(z.detach(), s.codes).argmin(-1); q = s.codes[i].clone()
        with torch.no_grad():
            one = nn.functional.one_hot(i, s.codes.shape[0]).float(); n = one.sum(0)
            if s.calls == 3: s.codes.copy_((one.t() @ z.detach()) / n[:, None])
        s.calls += 1
        return z + (q - z).detach(), ((z - q) ** 2).mean()
class AE(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(5, 3); s.vq = VQ(); s.dec = nn.Linear(3, 5)
    def forward(s, x): q, c = s.vq(s.enc(x)); return s.dec(q), c

def build():
    torch.manual_seed(0); model = AE(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(16, 5, generator=g) for _ in range(6)]
    def loss_fn(m, b):
        r, c = m(b); return {"rec": ((r - b) ** 2).mean(), "commit": 0.25 * c}
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="state_overwritten", also=["division_by_zero", "empty_reduction"], module="vq", phase="forward", op="aten.div", also_op=["aten.copy_"], first_bad_step=3,
                           loss_finite_at_first_bad_step=True, poisoned_state=["vq.codes"],
                           **{"not": ["hardware_fault", "bn_buffers_poisoned", "ema_poisoned", "bad_input_data", "uninitialised_memory"]}))
