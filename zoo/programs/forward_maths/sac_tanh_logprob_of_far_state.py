"""SAC: log(1 - tanh(u)^2) without an epsilon. A state far out drives the policy mean to about 40, tanh is exactly 1, log(0) = -inf.
True cause: log at exactly 0 in the tanh correction; still there in fp32 (log_std is clamped, the exp is innocent)."""
import math, torch, torch.nn as nn

class SquashedGaussian(nn.Module):
    def __init__(s, rng): super().__init__(); s.rng = rng
    def forward(s, mu, log_std):
        log_std = log_std.clamp(-5, 2); std = log_std.exp()
        u = mu + std * torch.randn(mu.shape, generator=s.rng)
        a = torch.tanh(u)
        logp = (-0.5 * ((u - mu) / std) ** 2 - log_std - 0.5 * math.log(2 * math.pi)) - torch.log(1 - a.pow(2))
        return a, logp.sum(-1)
class Actor(nn.Module):
    def __init__(s, rng):
        super().__init__(); s.body = nn.Sequential(nn.Linear(4, 16), nn.ReLU()); s.mu = nn.Linear(16, 2); s.ls = nn.Linear(16, 2)
        s.dist = SquashedGaussian(rng); s.q = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))
    def forward(s, o):
        h = s.body(o); a, lp = s.dist(s.mu(h), s.ls(h) - 1.0); return s.q(torch.cat([o, a], -1)).squeeze(-1), lp

def build():
    torch.manual_seed(0); rng = torch.Generator().manual_seed(7); model = Actor(rng)
    with torch.no_grad():                                             # the first observation feature leads straight to the mean of action 0
        model.body[0].weight[0].copy_(torch.tensor([1.0, 0, 0, 0])); model.body[0].bias[0] = 0
        model.mu.weight[0].mul_(0.1); model.mu.weight[0, 0] = 1.0; model.ls.weight.mul_(0.05)
    opt = torch.optim.Adam(model.parameters(), lr=3e-4); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(8, 4, generator=g).clamp(-1.5, 1.5) for _ in range(8)]
    batches[5][3, 0] = 45.0                                           # the cart left the track: large, but a legitimate state
    def loss_fn(m, o):
        q, lp = m(o); return (0.2 * lp - q).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="log_of_zero", also=["input_out_of_scale"], module="dist", phase="forward", op="aten.log", first_bad_step=5))
