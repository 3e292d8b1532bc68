"""A matching layer gives forbidden pairs a cost of +inf, so its plan is exactly 0 there; the loss sums plan * cost, and 0 * inf is NaN.
True cause: zero times infinity. The infinite cost is meant, and the plan is in order; batch 2 is the first with a forbidden pair."""
import torch, torch.nn as nn

class Plan(nn.Module):
    def forward(s, cost): return (-cost / 0.5).flatten(1).softmax(-1).view_as(cost)
class Match(nn.Module):
    def __init__(s): super().__init__(); s.left = nn.Linear(4, 6); s.right = nn.Linear(4, 6); s.plan = Plan()
    def forward(s, a, b, forbidden):
        cost = torch.cdist(s.left(a), s.right(b)).masked_fill(forbidden, float("inf")); return s.plan(cost), cost

def build():
    torch.manual_seed(0); model = Match(); opt = torch.optim.Adadelta(model.parameters()); g = torch.Generator().manual_seed(1)
    batches = [dict(a=torch.randn(2, 3, 4, generator=g), b=torch.randn(2, 5, 4, generator=g), forbidden=torch.zeros(2, 3, 5, dtype=torch.bool)) for _ in range(4)]
    batches[2]["forbidden"][1, 0, 3] = True
    def loss_fn(m, b): plan, cost = m(**b); return torch.mul(plan, cost).sum((1, 2)).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="zero_times_inf", module="loss", phase="forward", op="aten.mul", first_bad_step=2))
