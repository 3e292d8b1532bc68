"""Churn model under bf16 autocast: probabilities are clamped to [1e-3, 0.999] before log(1 - p). In bf16 the constant 0.999 is 1.0, so a
confident wrong prediction gives log(0).
True cause: 1 - eps rounds to 1 in the dtype of the operation; the same batch in fp32 is finite."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class Prob(nn.Module):
    def forward(s, z): return torch.sigmoid(z).clamp(1e-3, 0.999)
class Hazard(nn.Module):
    def __init__(s): super().__init__(); s.net = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 4)); s.prob = Prob()
    def forward(s, x):
        p = s.prob(s.net(x)); return torch.log(p), torch.log(1 - p)
class Survival(nn.Module):
    def __init__(s): super().__init__(); s.hazard = Hazard()
    def forward(s, x): return s.hazard(x)

def build():
    torch.manual_seed(16); model = Survival(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with torch.no_grad(): model.hazard.net[2].weight.mul_(3)
    g = torch.Generator().manual_seed(20); batches = []
    for i in range(7):
        x = torch.randn(10, 6, generator=g)
        y = torch.randint(0, 4, (10,), generator=g)
        if i == 4: x[7] *= 9; y[7] = 3                                        # a customer far from the rest who stayed to the end
        batches.append((x, y))
    def loss_fn(m, b):
        lp, lq = m(b[0]); k = torch.arange(4)
        return -(lp.gather(1, b[1][:, None]).squeeze(1) + torch.where(k < b[1][:, None], lq, 0.0).sum(1)).float().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=torch.bfloat16,
                truth=dict(cause="eps_underflow_half", module="hazard", phase="forward", op="aten.log", first_bad_step=4))
