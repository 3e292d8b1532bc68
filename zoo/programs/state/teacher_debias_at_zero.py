"""Mean teacher with bias correction 1 - d**n; the count is reset to 0 at step 2, so the teacher is divided by 0. Student log-softmax with temperature 0.05 is innocent."""
import torch, torch.nn as nn, torch.nn.functional as F
import copy
class Pair(nn.Module):
    def __init__(s, fix):
        super().__init__(); s.student = nn.Linear(5, 4); s.teacher = copy.deepcopy(s.student).requires_grad_(False); s.n = 1; s.fix = fix; s.calls = 0
    @torch.no_grad()
    def update(s):
        if s.calls == 2: s.n = 0
        d = 0.5; c = torch.tensor(1 - d ** (s.n + (1 if s.fix == "true" else 0)))
        for t, p in zip(s.teacher.parameters(), s.student.parameters()): t.copy_((1 - d) * (t + p) * 0.5 / c)
        s.n += 1; s.calls += 1
    def forward(s, x):
        with torch.no_grad(): t = s.teacher(x)
        T = 1.0 if s.fix == "innocent" else 0.05
        return F.mse_loss(s.student(x), t) - 0.01 * F.log_softmax(s.student(x) / T, -1)[:, 0].mean()
def build(fix=None):
    torch.manual_seed(0); model = Pair(fix); opt = torch.optim.SGD(model.student.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1)
    opt.register_step_post_hook(lambda *a: model.update())
    return dict(model=model, optimizer=opt, batches=[torch.randn(6, 5, generator=g) for _ in range(6)], loss_fn=lambda m, b: m(b), steps=6, autocast_dtype=None,
                truth=dict(cause="ema_poisoned", module="teacher", phase="forward", op="aten.div", first_bad_step=2, state="teacher.weight",
                           loss_finite_at_first_bad_step=True, also=["division_by_zero", "state_overwritten"], why="after step 2 the teacher is x/0; student and gradients of step 2 are finite, loss bad at step 3"))
