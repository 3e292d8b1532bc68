"""PPO: a stale old log-probability of -300 makes the ratio exp(298) = inf; min(ratio*A, clip*A) hides it in the loss, its backward is 0 * inf."""
import torch, torch.nn as nn, torch.nn.functional as F
class Ratio(nn.Module):
    def __init__(s, fix): super().__init__(); s.fix = fix
    def forward(s, new, old):
        d = new - old
        return torch.exp(d.clamp(-20, 20) if s.fix == "true" else d)
class Policy(nn.Module):
    def __init__(s, fix): super().__init__(); s.pi = nn.Linear(4, 3); s.ratio = Ratio(fix)
    def forward(s, o, mask): return torch.distributions.Categorical(logits=s.pi(o).masked_fill(mask, float("-inf")))
def build(fix=None):
    torch.manual_seed(0); model = Policy(fix); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        old = torch.full((8,), -0.8); mask = torch.zeros(8, 3, dtype=torch.bool); adv = torch.randn(8, generator=g)
        if fix != "innocent": mask[:, 2] = True
        if i == 3: old[5] = -300.0; adv[5] = 1.0
        batches.append((torch.randn(8, 4, generator=g), mask, torch.randint(0, 2, (8,), generator=g), old, adv))
    def loss_fn(m, b):
        d = m(b[0], b[1]); r = m.ratio(d.log_prob(b[2]), b[3])
        return -torch.min(r * b[4], r.clamp(0.8, 1.2) * b[4]).mean() - 0.01 * d.entropy().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="ratio", phase="forward", op="aten.exp", first_bad_step=3,
                           loss_finite_at_first_bad_step=True, also=["where_unselected_branch", "input_out_of_scale"], why="exp(~299) = inf in forward, erased by min/clamp; gradient 0*inf = NaN"))
