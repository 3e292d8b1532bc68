"""Knowledge distillation under fp16 autocast: log(p + 1e-8) on fp16 probabilities; p underflows and so does the epsilon.
True cause: 1e-8 is 0 in fp16, log(0) = -inf; in fp32 log(1e-8) = -18.4."""
import torch, torch.nn as nn

class LogProb(nn.Module):
    def forward(s, z): return torch.log(torch.softmax(z, -1) + 1e-8)
class Student(nn.Module):
    def __init__(s): super().__init__(); s.f = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 6)); s.logp = LogProb()
    def forward(s, x): return s.logp(s.f(x))

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Student(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with torch.no_grad(): model.f[2].weight.mul_(4)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        x = torch.randn(8, 10, generator=g) * (1.0 if i != 3 else 12.0); batches.append((x, torch.softmax(torch.randn(8, 6, generator=g), -1)))
    def loss_fn(m, b): return -(b[1] * m(b[0]).float()).sum(-1).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=torch.float16,
                truth=dict(cause="eps_underflow_half", module="logp", phase="forward", op="aten.log", first_bad_step=3))
