"""VQ-VAE with an EMA codebook: embedding = sum / count, with counts reset to 0 at a 'codebook restart' (batch 3) and one code that nobody
chose afterwards: 0/0 is written into the buffer inside forward. The loss of that step is finite."""
import torch, torch.nn as nn
class Quantizer(nn.Module):
    def __init__(s, k=6, d=4):
        super().__init__(); e = torch.randn(k, d); e[5] = 50.0           # code 5 is far from all data: never chosen
        s.register_buffer("embed", e); s.register_buffer("count", torch.ones(k)); s.register_buffer("total", e.clone())
    def forward(s, z, restart):
        i = torch.cdist(z.detach(), s.embed).argmin(1); q = s.embed[i].clone()
        with torch.no_grad():
            one = nn.functional.one_hot(i, len(s.embed)).float()
            d = 0.0 if restart else 0.9
            s.count.mul_(d).add_(one.sum(0), alpha=1 - d); s.total.mul_(d).add_(one.T @ z, alpha=1 - d)
            s.embed.copy_(s.total / s.count[:, None])
        return z + (q - z).detach(), nn.functional.mse_loss(z, q)
class VQ(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(10, 4); s.vq = Quantizer(); s.dec = nn.Linear(4, 10)
    def forward(s, x, r): z, c = s.vq(s.enc(x), r); return s.dec(z), c
def build():
    torch.manual_seed(0); model = VQ(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(2)
    batches = [(torch.randn(12, 10, generator=g), i == 3) for i in range(6)]
    def loss_fn(m, b): r, c = m(*b); return nn.functional.mse_loss(r, b[0]) + 0.25 * c
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="vq", phase="forward", op="aten.div", first_bad_step=3, loss_finite_at_first_bad_step=True,
                           poisoned_state=["vq.embed"], also=["state_overwritten", "bn_buffers_poisoned"], why="After the restart a code with count 0 is total/count = 0/0, copied into the codebook buffer."))
