"""A home-made LAMB keeps beta2 = 0.9999 as an fp16 tensor beside its fp16 moments: it is 1.0, so v stays 0 and 1 - beta2^t = 0.
The first steps are plain SGD (warm-up). True cause: optimizer constant rounds to one."""
import torch, torch.nn as nn

class HalfLAMB(torch.optim.Optimizer):
    def __init__(s, params, lr, betas=(0.9, 0.9999), warmup=2): super().__init__(params, dict(lr=lr, betas=betas, warmup=warmup))
    @torch.no_grad()
    def step(s, closure=None):
        for grp in s.param_groups:
            for p in (q for q in grp["params"] if q.grad is not None):
                st = s.state[p]
                if not st: st["t"] = 0; st["m"] = torch.zeros_like(p, dtype=torch.float16); st["v"] = torch.zeros_like(p, dtype=torch.float16)
                st["t"] += 1; b1, b2 = (torch.tensor(b, dtype=torch.float16) for b in grp["betas"]); g = p.grad.half()
                st["m"].copy_(b1 * st["m"] + (1 - b1) * g); st["v"].copy_(b2 * st["v"] + (1 - b2) * g * g)
                if st["t"] <= grp["warmup"]: p.add_(p.grad, alpha=-grp["lr"]); continue
                vhat = torch.div(st["v"], 1 - b2 ** st["t"]); u = st["m"].float() / (vhat.float().sqrt() + 1e-6)
                p.add_(u, alpha=-grp["lr"] * float(p.norm() / u.norm().clamp(min=1e-6)))

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = nn.Sequential(nn.Conv1d(2, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 8, 2)); opt = HalfLAMB(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(6, 2, 10, generator=g), torch.randint(0, 2, (6,), generator=g)) for _ in range(6)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="optimizer_constant_rounding", module="optimizer", phase="optimizer", op="aten.div", first_bad_step=2, loss_finite_at_first_bad_step=True))
