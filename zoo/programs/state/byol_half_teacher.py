"""BYOL-like distillation with the averaged teacher kept in fp16 to save memory. The student's frozen output scale is 1e5 and does not fit.
True cause: the average's copy of `scale` is inf after the first EMA update (step 2, after the warm-up); the student stays finite, the teacher is not used yet."""
import copy, torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.f = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 4)); s.scale = nn.Parameter(torch.ones(4), requires_grad=False)
    def forward(s, x): return s.f(x) * s.scale
class Distil(nn.Module):
    def __init__(s):
        super().__init__(); s.student = Net(); s.teacher = copy.deepcopy(s.student).half().requires_grad_(False); s.student.scale.data.fill_(1e5)
    def forward(s, x): return s.student(x)
    @torch.no_grad()
    def ema(s, decay):
        for pt, ps in zip(s.teacher.parameters(), s.student.parameters()): pt.copy_(decay * pt.float() + (1 - decay) * ps)

def build():
    torch.manual_seed(0); model = Distil(); opt = torch.optim.SGD(model.student.f.parameters(), lr=0.05); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 6, generator=g), torch.randn(8, 4, generator=g) * 1e5, i) for i in range(6)]
    def loss_fn(m, b):
        if b[2] >= 2: m.ema(0.0 if b[2] == 2 else 0.99)                  # first update: plain copy
        return nn.functional.mse_loss(m(b[0]) / 1e5, b[1] / 1e5)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="ema_poisoned", also=["state_overwritten", "fp16_forward_overflow"], module="loss", where="loss_fn", also_module=["teacher"], phase="forward", also_phase=["state"], op="aten.copy_",
                           first_bad_step=2, loss_finite_at_first_bad_step=True, poisoned_state=["teacher.scale"]))
