"""PPO: ratio = exp(logp - old_logp). One stale transition has old_logp = -140: exp overflows; min(ratio*A, clip*A) with A>0 picks the
clipped side, so the loss stays finite, but the backward of exp multiplies 0 by Inf. Entropy's p*log p (innocent) is computed from log_softmax."""
import torch, torch.nn as nn

class Policy(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Sequential(nn.Linear(4, 16), nn.Tanh()); s.pi = nn.Linear(16, 3); s.v = nn.Linear(16, 1)
    def forward(s, x): h = s.body(x); return s.pi(h).log_softmax(-1), s.v(h).squeeze(-1)
class Surrogate(nn.Module):
    def __init__(s, fix): super().__init__(); s.fix = fix
    def forward(s, logp, old, adv):
        d = logp - old
        if s.fix == "true": d = d.clamp(-20, 20)
        r = torch.exp(d); return -torch.minimum(r * adv, r.clamp(0.8, 1.2) * adv).mean()
class Agent(nn.Module):
    def __init__(s, fix): super().__init__(); s.policy = Policy(); s.surr = Surrogate(fix)
    def forward(s, x): return s.policy(x)

def build(fix=None):
    torch.manual_seed(0); model = Agent(fix); opt = torch.optim.Adam(model.parameters(), lr=3e-4); g = torch.Generator().manual_seed(1); batches = []
    for k in range(6):
        b = dict(obs=torch.randn(16, 4, generator=g), act=torch.randint(0, 3, (16,), generator=g), old=-1.1 + 0.05 * torch.randn(16, generator=g),
                 adv=torch.randn(16, generator=g), ret=torch.randn(16, generator=g))
        if k == 3: b["old"][5] = -140.0; b["adv"][5] = 1.0
        batches.append(b)
    def loss_fn(m, b):
        lp, v = m(b["obs"]); l = m.surr(lp.gather(1, b["act"][:, None])[:, 0], b["old"], b["adv"])
        ent = 0.0 if fix == "innocent" else -(lp.exp() * lp).sum(-1).mean()
        return l + 0.5 * (v - b["ret"]).pow(2).mean() - 0.01 * ent
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="surr", phase="forward", op="aten.exp", first_bad_step=3, loss_finite_at_first_bad_step=True,
                           also=["where_unselected_branch", "bad_input_data", "input_out_of_scale"], also_phase=["backward"],
                           why="exp(139) = Inf is erased by min() in forward, 0*Inf in backward; clamping the log-ratio cures it"))
