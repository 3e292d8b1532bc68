"""VQ codebook refreshed from batch statistics: a code that nobody chose gets 0/0. The bad row is written in step 2 and read in step 3."""
import torch, torch.nn as nn, torch.nn.functional as F
class VQ(nn.Module):
    def __init__(s, fix): super().__init__(); s.register_buffer("code", torch.tensor([[0., 0.], [5., 5.], [-5., -5.]])); s.fix = fix
    def forward(s, z):
        i = torch.cdist(z, s.code).argmin(-1); q = s.code[i]
        with torch.no_grad():
            oh = F.one_hot(i, 3).float(); n = oh.sum(0)[:, None]
            if s.fix == "true": s.code.copy_(torch.where(n > 0, oh.t() @ z / n.clamp_min(1), s.code))
            else: s.code.copy_((oh.t() @ z) / n)
        return z + (q - z).detach(), (z - q).square().mean()
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.enc = nn.Linear(2, 2); s.vq = VQ(fix); s.dec = nn.Linear(2, 2); s.fix = fix
    def forward(s, x):
        q, c = s.vq(s.enc(x)); l = F.mse_loss(s.dec(q), x) + 0.25 * c
        return l if s.fix == "innocent" else l + 1e-3 * torch.log(x.square().sum(-1) + 1e-9).mean()
def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.Adam(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1); batches = []
    with torch.no_grad(): model.enc.weight.copy_(torch.eye(2)); model.enc.bias.zero_()
    for i in range(6):
        c = torch.tensor([[0., 0.], [5., 5.], [-5., -5.]]) if i != 2 else torch.tensor([[0., 0.], [5., 5.], [5., 5.]])
        batches.append(c.repeat(3, 1) + 0.1 * torch.randn(9, 2, generator=g))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: m(b), steps=6, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="vq", phase="forward", op="aten.div", first_bad_step=3, state="vq.code", written_at_step=2,
                           loss_finite_at_first_bad_step=False, also=["state_overwritten", "bn_buffers_poisoned"], why="count 0 of code 2 in batch 2; the NaN row wins argmin afterwards"))
