"""VAE under fp16 autocast with a hand-written loss scaler: the scale doubles after every step whose LOSS is finite, and the gradients, which
are what overflows, are never looked at. Unscaling happens before the update, so training is healthy until the scale has run away.
True cause: loss-scale misuse; the same step with scale 1 is finite."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class VAE(nn.Module):
    def __init__(s):
        super().__init__(); s.enc = nn.Linear(20, 32); s.mu = nn.Linear(32, 4); s.lv = nn.Linear(32, 4); s.dec = nn.Sequential(nn.Linear(4, 32), nn.SiLU(), nn.Linear(32, 20))
        s.register_buffer("scale", torch.tensor(2.0 ** 13))
    def forward(s, x, eps):
        h = nn.functional.silu(s.enc(x)); mu, lv = s.mu(h).float(), s.lv(h).float().clamp(-8, 8); return s.dec(mu + (0.5 * lv).exp() * eps), mu, lv

def build():
    torch.manual_seed(19); model = VAE(); opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    def unscale(o, *a):
        for grp in o.param_groups:
            for p in grp["params"]:
                if p.grad is not None: p.grad.div_(model.scale)
    opt.register_step_pre_hook(unscale)
    opt.register_step_post_hook(lambda o, *a: model.scale.mul_(2) and None)    # "no NaN loss so far: grow"
    g = torch.Generator().manual_seed(23)
    batches = [(torch.randn(16, 20, generator=g), torch.randn(16, 4, generator=g)) for _ in range(12)]
    def loss_fn(m, b):
        r, mu, lv = m(*b); kl = 0.5 * (mu ** 2 + lv.exp() - 1 - lv).sum(-1)
        return m.scale * (((r.float() - b[0]) ** 2).sum(-1) + 0.1 * kl).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=torch.float16,
                truth=dict(cause="loss_scale_misuse", module="dec.2", phase="backward", op="aten.mm", first_bad_step=4,
                           loss_finite_at_first_bad_step=True))
