"""RL observation normaliser (own running mean/var buffers): it normalises with the OLD statistics and then updates them with x.var(0); the last batch of a short episode (batch 2) has one row, var of one sample is NaN,
and the buffer is poisoned. The loss of step 2 is finite, step 3 is not."""
import torch, torch.nn as nn
class RunningNorm(nn.Module):
    def __init__(s, d): super().__init__(); s.register_buffer("mean", torch.zeros(d)); s.register_buffer("var", torch.ones(d))
    def forward(s, x):
        y = (x - s.mean) / (s.var + 1e-5).sqrt()
        if s.training:
            with torch.no_grad(): s.mean.lerp_(x.mean(0), 0.1); s.var.lerp_(x.var(0), 0.1)
        return y
class Critic(nn.Module):
    def __init__(s): super().__init__(); s.norm = RunningNorm(6); s.q = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 1))
    def forward(s, o): return s.q(s.norm(o)).squeeze(-1)
def build():
    torch.manual_seed(0); model = Critic(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    bs = [(torch.randn(n, 6, generator=g) * 3 + 1, torch.randn(n, generator=g)) for n in (32, 32, 1, 32, 32)]
    def loss_fn(m, b): return nn.functional.huber_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="bn_buffers_poisoned", module="norm", phase="forward", op="aten.var", first_bad_step=2, loss_finite_at_first_bad_step=True, poisoned_state=["norm.var"],
                           also=["std_of_one_element"], why="The unbiased variance of one row is NaN and is folded into a running buffer while loss and gradients stay finite."))
