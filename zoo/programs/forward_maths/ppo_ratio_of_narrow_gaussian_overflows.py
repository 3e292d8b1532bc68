"""Importance ratio exp(new - old) with log-densities of a narrow Gaussian policy: an action recorded far from the present mean gives
a difference above 88.
True cause: exp overflow in the loss (the inputs of exp are finite)."""
import torch, torch.nn as nn

class Actor(nn.Module):
    def __init__(s): super().__init__(); s.mu = nn.Linear(4, 2); s.log_std = nn.Parameter(torch.full((2,), -2.5))
    def logp(s, obs, act): z = (act - s.mu(obs)) * torch.exp(-s.log_std); return (-0.5 * z.square() - s.log_std).sum(-1)
    def forward(s, obs, act): return s.logp(obs, act)

def build():
    torch.manual_seed(0); model = Actor(); opt = torch.optim.Adam(model.parameters(), lr=3e-4); g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        obs = torch.randn(16, 4, generator=g)
        with torch.no_grad(): act = model.mu(obs) + 0.08 * torch.randn(16, 2, generator=g); old = model(obs, act)
        if i == 3: old[7] = -180.0                                                # a stale entry of the replay memory
        batches.append(dict(obs=obs, act=act, old=old, adv=torch.randn(16, generator=g)))
    def loss_fn(m, b): return -(torch.exp(m(b["obs"], b["act"]) - b["old"]) * b["adv"]).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="loss", phase="forward", op="aten.exp", first_bad_step=3))
