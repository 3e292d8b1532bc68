"""Half-precision model with adaptive gradient clipping (threshold = running mean of the norm): every gradient is finite, but their joint
norm exceeds 65504 = Inf in fp16; threshold Inf / norm Inf = NaN. True cause: overflow of the gradient norm."""
import torch, torch.nn as nn

class AutoClip:
    def __init__(s, params): s.params = list(params); s.avg = None
    def __call__(s, o, *a):
        flat = torch.cat([p.grad.flatten() for p in s.params]); norm = torch.linalg.vector_norm(flat)
        s.avg = norm if s.avg is None else 0.9 * s.avg + 0.1 * norm
        coef = (1.5 * s.avg / (norm + 1e-3)).clamp(max=1.0)
        for p in s.params: p.grad.mul_(coef)

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 4)).half()
    opt = torch.optim.SGD(model.parameters(), lr=1e-7); opt.register_step_pre_hook(AutoClip(model.parameters()))
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(7): batches.append((torch.randn(64, 64, generator=g).half(), torch.randn(64, 4, generator=g) * (60.0 if i < 4 else 80000.0)))
    def loss_fn(m, b): return (m(b[0]).float() - b[1]).square().sum() / 64
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="grad_norm_overflow", module="optimizer", phase="grad_clip", op="aten.linalg_vector_norm", first_bad_step=4, loss_finite_at_first_bad_step=True))
