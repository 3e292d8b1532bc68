"""Bias-corrected EMA teacher, updated in the loss function under no_grad: shadow / (1 - d**n). At step 3 the run "restarts the average":
shadow and n are zeroed, and the copy is taken before the first update: 0/0. Student, loss and gradients are finite in that step."""
import copy, torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s):
        super().__init__(); s.student = nn.Linear(5, 3); s.teacher = copy.deepcopy(s.student).requires_grad_(False)
        s.shadow = [torch.zeros_like(p) for p in s.student.parameters()]; s.n = 0
    def forward(s, x): return s.student(x)

@torch.no_grad()
def update(m, d=0.9, restart=False):
    if restart:
        for h in m.shadow: h.zero_()
        m.n = 0
    else:
        for h, p in zip(m.shadow, m.student.parameters()): h.mul_(d).add_(p, alpha=1 - d)
        m.n += 1
    for t, h in zip(m.teacher.parameters(), m.shadow): t.copy_(h / torch.tensor(1.0 - d ** m.n))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.student.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 5, generator=g), torch.randint(0, 3, (8,), generator=g), i) for i in range(8)]
    def loss_fn(m, b):
        loss = nn.functional.cross_entropy(m(b[0]), b[1])
        if b[2] % 4 == 0:                                                   # the teacher is asked every fourth step only
            with torch.no_grad(): t = m.teacher(b[0]).softmax(-1)
            loss = loss + 0.1 * nn.functional.mse_loss(m(b[0]).softmax(-1), t)
        update(m, restart=b[2] == 3)
        return loss
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="ema_poisoned", also=["division_by_zero", "state_overwritten"], module="loss", where="loss_fn", phase="forward", op="aten.div", also_op=["aten.copy_"], also_module=["teacher"],
                           first_bad_step=3, loss_finite_at_first_bad_step=True, poisoned_state=["teacher.weight", "teacher.bias"],
                           **{"not": ["hardware_fault", "bad_input_data", "lr_too_high", "bn_buffers_poisoned", "uninitialised_memory"]}))
