"""Distillation: student logits are masked with -inf for an illegal class from batch 2 on; teacher gives 0 there, 0 * -inf. F.kl_div of the legal part is innocent."""
import torch, torch.nn as nn, torch.nn.functional as F
class Student(nn.Module):
    def __init__(s): super().__init__(); s.f = nn.Linear(5, 4)
    def forward(s, x, legal): return s.f(x).masked_fill(~legal, float("-inf"))
class Soft(nn.Module):
    def __init__(s, fix): super().__init__(); s.fix = fix
    def forward(s, z, t):
        lp = z.log_softmax(-1)
        if s.fix == "true": lp = lp.masked_fill(t == 0, 0.0)
        return -torch.einsum("bc,bc->b", t, lp).mean()
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.student = Student(); s.soft = Soft(fix); s.fix = fix
    def forward(s, x, legal, t):
        z = s.student(x, legal); l = s.soft(z, t)
        return l if s.fix == "innocent" else l + 0.1 * F.kl_div(z[:, :3].log_softmax(-1), t[:, :3], reduction="batchmean")
def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        legal = torch.ones(6, 4, dtype=torch.bool); legal[2, 3] = i < 2
        t = torch.softmax(torch.randn(6, 4, generator=g).masked_fill(~legal, float("-inf")), -1); batches.append((torch.randn(6, 5, generator=g), legal, t))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: m(*b), steps=5, autocast_dtype=None,
                truth=dict(cause="zero_times_inf", module="soft", phase="forward", op="aten.bmm", first_bad_step=2,
                           loss_finite_at_first_bad_step=False, also=[], why="target 0 times log-probability -inf inside an einsum"))
