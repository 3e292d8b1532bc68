"""A debiased RMSprop keeps its decay rho = 0.9999 as an fp16 tensor, which is 1.0: the average never moves from 0, the correction 1 - rho ** t is 0, and 0 / 0.
True cause: an optimizer constant that rounds to 1 in its type. The model is fp32, and its precision does not matter."""
import torch, torch.nn as nn

class DebiasedRMSprop(torch.optim.Optimizer):
    def __init__(s, params, lr=1e-3, rho=0.9999): super().__init__(params, dict(lr=lr, rho=torch.tensor(rho, dtype=torch.float16)))
    @torch.no_grad()
    def step(s, closure=None):
        for group in s.param_groups:
            for p in group["params"]:
                st, rho = s.state[p], group["rho"].float()
                if not st: st.update(step=0, sq=torch.zeros_like(p))
                st["step"] += 1; st["sq"].mul_(rho).add_(p.grad.square() * (1 - rho))
                p.add_(p.grad / ((st["sq"] / (1 - rho ** st["step"])).sqrt() + 1e-8), alpha=-group["lr"])

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(5, 10), nn.Hardtanh(), nn.Linear(10, 2)); opt = DebiasedRMSprop(model.parameters())
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(6, 5, generator=g), torch.randn(6, 2, generator=g)) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.huber_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="optimizer_constant_rounding", module="optimizer", phase="optimizer", op="aten.div", first_bad_step=0,
                           loss_finite_at_first_bad_step=True))
