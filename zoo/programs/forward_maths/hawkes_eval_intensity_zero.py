"""Neural point process: training uses softplus intensities, the eval branch the 'exact' rectified ones. Step 3 is a validation-in-the-loop batch (model.eval()): for one real
event the rectified intensity is exactly 0, log = -inf. The padded events' zeros are masked by a double where in both branches (innocent)."""
import torch, torch.nn as nn

class Intensity(nn.Module):
    def __init__(s, fix):
        super().__init__(); s.base = nn.Parameter(torch.tensor(0.5)); s.alpha = nn.Parameter(torch.tensor([0.4, -6.0])); s.fix = fix
    def forward(s, dt, kind):                                        # inhibition by events of kind 1
        lam = s.base + s.alpha[kind] * torch.exp(-dt)
        return nn.functional.softplus(lam) if s.training or s.fix == "true" else torch.relu(lam)
class LogLik(nn.Module):
    def __init__(s, fix): super().__init__(); s.fix = fix
    def forward(s, lam, pad):
        safe = torch.where(pad, torch.ones_like(lam), lam)
        if s.fix == "innocent": return (torch.log(safe) * (~pad)).sum(-1)
        return torch.where(pad, torch.zeros_like(lam), torch.log(safe)).sum(-1)
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.lam = Intensity(fix); s.ll = LogLik(fix)
    def forward(s, dt, kind, pad):
        lam = s.lam(dt, kind) * (~pad); return -(s.ll(lam, pad) - 0.1 * (lam * dt).sum(-1)).mean()

def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.Adam(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        dt = torch.rand(4, 9, generator=g) + 0.1; kind = torch.zeros(4, 9, dtype=torch.long); n = torch.randint(4, 9, (4,), generator=g)
        kind[2, 1] = 1; dt[2, 1] = 0.2                              # an inhibitor just before an event, in every batch
        batches.append((dt, kind, torch.arange(9)[None] >= n[:, None], i))
    def loss_fn(m, b): m.train(b[3] != 3); return m(*b[:3])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="ll", phase="forward", op="aten.log", first_bad_step=3, loss_finite_at_first_bad_step=False,
                           why="only the eval branch rectifies: intensity of a REAL event exactly 0; the padded zeros are replaced by 1 before the log"))
