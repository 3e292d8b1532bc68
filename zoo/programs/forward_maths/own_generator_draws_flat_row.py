"""The model owns a torch.Generator and draws a calibration window from it. The draws are fixed by its seed: step 3 is the first that hits window 5,
which is flat (std exactly 0). A replay that does not rewind that generator draws another window and is finite."""
import torch, torch.nn as nn

class Whiten(nn.Module):
    def __init__(s):
        super().__init__(); s.gen = torch.Generator(); s.register_buffer("windows", torch.arange(64.).reshape(8, 8).sin()); s.windows[5] = 3.0
        s.lin = nn.Linear(8, 4)
    def forward(s, x):
        i = int(torch.randint(0, 8, (1,), generator=s.gen)); w = s.windows[i]
        sd = (w - w.mean()).pow(2).mean().sqrt()
        return s.lin((x - w.mean()) / sd)

def seq(seed):
    g = torch.Generator().manual_seed(seed)
    return [int(torch.randint(0, 8, (1,), generator=g)) for _ in range(12)]

def build():
    torch.manual_seed(0); m = nn.Sequential(Whiten(), nn.Tanh(), nn.Linear(4, 1)); opt = torch.optim.Adam(m.parameters(), lr=1e-3)
    seed = next(k for k in range(10000) if 5 in seq(k) and seq(k).index(5) == 3 and 5 not in seq(k)[4:])   # step 3 and only step 3
    m[0].gen.manual_seed(seed); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 8, generator=g), torch.randn(6, 1, generator=g)) for _ in range(6)]
    def loss_fn(mm, b): return nn.functional.mse_loss(mm(b[0]), b[1])
    return dict(model=m, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="0", phase="forward", op="aten.div", first_bad_step=3,
                           **{"not": ["compiler_bug", "hardware_fault", "bad_input_data", "backend_or_kernel_bug", "lr_too_high"]}))
