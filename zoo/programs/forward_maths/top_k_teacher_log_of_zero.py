"""Distillation from a teacher whose probabilities were cut to the top k: t * (log t - log s) with t = 0."""
import torch, torch.nn as nn, torch.nn.functional as F

class Student(nn.Module):
    def __init__(s): super().__init__(); s.net = nn.Linear(5, 6)
    def forward(s, x): return s.net(x)
def build():
    torch.manual_seed(0); model = Student(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, 5, generator=g), torch.softmax(torch.randn(4, 6, generator=g), -1)) for _ in range(3)]
    batches[2][1][1, 3:] = 0
    def loss_fn(m, b):
        logs = F.log_softmax(m(b[0]), -1); teacher = b[1]
        divergence = teacher * (teacher.log() - logs)
        return divergence.sum(-1).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="log_of_zero", where="loss_fn", module="", phase="forward", op="aten.log", first_bad_step=2, line="teacher * (teacher.log() - logs)"))
