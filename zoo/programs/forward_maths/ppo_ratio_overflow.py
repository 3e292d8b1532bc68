"""PPO with a Gaussian policy: ratio = exp(logp_new - logp_old). Old log-probs come from a stale actor and are -140 lower: exp overflows,
and the clipped surrogate does not protect (negative advantage picks the unclipped Inf). True cause: exp overflow."""
import torch, torch.nn as nn
from torch.distributions import Independent, Normal

class Actor(nn.Module):
    def __init__(s): super().__init__(); s.mu = nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 2)); s.log_std = nn.Parameter(torch.full((2,), -1.0))
    def forward(s, o): return Independent(Normal(s.mu(o), s.log_std.exp(), validate_args=False), 1, validate_args=False)

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Actor(); opt = torch.optim.Adam(model.parameters(), lr=3e-4)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(8):
        o = torch.randn(12, 5, generator=g)
        with torch.no_grad(): a = model.mu(o) + 0.3 * torch.randn(12, 2, generator=g); old = model(o).log_prob(a)
        adv = torch.randn(12, generator=g)
        if i == 6: old[4] -= 140.0; adv[4] = -0.7                    # actor was two versions behind
        batches.append(dict(obs=o, act=a, old_logp=old, adv=adv))
    def loss_fn(m, b):
        ratio = torch.exp(m(b["obs"]).log_prob(b["act"]) - b["old_logp"])
        return -torch.min(ratio * b["adv"], ratio.clamp(0.8, 1.2) * b["adv"]).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="loss", phase="forward", op="aten.exp", first_bad_step=6))
