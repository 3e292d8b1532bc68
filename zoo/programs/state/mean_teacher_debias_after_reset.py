"""Mean teacher: the EMA callback runs in the loader, before each batch, with a debiasing factor 1/(1 - decay**n), n = updates since the last reset; at batch 3 the counter was just reset to 0, so the factor is Inf and
the teacher's copy becomes Inf/NaN. Student, gradients and optimizer are fine."""
import copy, torch, torch.nn as nn
class MeanTeacher(nn.Module):
    def __init__(s):
        super().__init__(); s.student = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)); s.teacher = copy.deepcopy(s.student).requires_grad_(False)
        s.avg = copy.deepcopy(s.student).requires_grad_(False)
    @torch.no_grad()
    def update(s, n, decay=0.9):
        bias = torch.tensor(1.0) - torch.tensor(decay) ** n
        for t, a, p in zip(s.teacher.parameters(), s.avg.parameters(), s.student.parameters()):
            a.lerp_(p, 1 - decay); t.copy_(a / bias * (1 - decay ** 50))
    def forward(s, x): return s.student(x), s.teacher(x + 0.01)
def build():
    torch.manual_seed(0); model = MeanTeacher(); opt = torch.optim.AdamW(model.student.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    def loader():
        for i in range(6):
            model.update(0 if i == 3 else 40 + i)
            yield dict(x=torch.randn(10, 8, generator=g), y=torch.randint(0, 4, (10,), generator=g))
    def loss_fn(m, b):
        s, t = m(b["x"]); return nn.functional.cross_entropy(s, b["y"]) + nn.functional.mse_loss(s.softmax(-1), t.softmax(-1))
    return dict(model=model, optimizer=opt, batches=loader(), loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="ema_poisoned", module="teacher.0", phase="forward", op="aten.empty", first_bad_step=3, loss_finite_at_first_bad_step=False, state="teacher.0.weight",
                           op_note="op not scored (state fault)", also=["state_overwritten", "division_by_zero"], why="The averaged copy is divided by a debiasing term of 0; the student is finite."))
