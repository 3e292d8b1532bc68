"""Mean teacher: a consistency loss against an averaged copy of the student, which stands beside the model. SGD with a rate of 300.
True cause: the learning rate. The teacher has followed the thrown weights, so that older weights of the student alone do not help."""
import copy, torch, torch.nn as nn, torch.nn.functional as F

def build():
    torch.manual_seed(14)
    student = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))
    teacher = copy.deepcopy(student).requires_grad_(False)
    opt = torch.optim.SGD(student.parameters(), lr=300.0, momentum=0.9, nesterov=True)
    g = torch.Generator().manual_seed(1)
    data = [(torch.randn(16, 20, generator=g), torch.randint(0, 6, (16,), generator=g)) for _ in range(12)]
    def batches():
        for batch in data:
            with torch.no_grad():
                for t, p in zip(teacher.parameters(), student.parameters()): t.lerp_(p, 0.1)
            yield batch
    def loss_fn(m, b):
        x, y = b
        with torch.no_grad(): wanted = teacher(x)
        said = m(x)
        return F.cross_entropy(said, y) + 2.0 * F.mse_loss(said, wanted)
    return dict(model=student, optimizer=opt, batches=batches(), loss_fn=loss_fn, steps=12, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="loss", phase="forward", op="aten.mse_loss", first_bad_step=2, line="F.mse_loss"))
