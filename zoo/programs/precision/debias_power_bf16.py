"""An Adam written for bf16 models keeps its betas in a bf16 tensor and divides both moments by 1 - beta ** step. 0.9985 is 1.0 in bf16, so
the correction of the second moment is 0. The weights are fp32; making the model fp32 or the data smaller changes nothing.
True cause: an optimizer constant that is not representable in its type."""
import torch, torch.nn as nn

class LowAdam(torch.optim.Optimizer):
    def __init__(s, params, lr): super().__init__(params, dict(lr=lr, betas=torch.tensor([0.9, 0.9985], dtype=torch.bfloat16)))
    @torch.no_grad()
    def step(s, closure=None):
        for grp in s.param_groups:
            for p in grp["params"]:
                st = s.state[p]
                if not st: st.update(step=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                st["step"] += 1; fix = 1 - grp["betas"].float() ** st["step"]
                st["m"].lerp_(p.grad, 0.1); st["v"].mul_(0.9985).addcmul_(p.grad, p.grad, value=0.0015)
                p.add_((st["m"] / fix[0]) / (st["v"] / fix[1] + 1e-12).sqrt(), alpha=-grp["lr"])

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Embedding(20, 6), nn.Flatten(), nn.Linear(24, 9)); opt = LowAdam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = [(torch.randint(0, 9, (6, 4), generator=g), torch.randint(0, 9, (6,), generator=g)) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="optimizer_constant_rounding", module="optimizer", phase="optimizer", op="aten.div", first_bad_step=0,
                           loss_finite_at_first_bad_step=True))
