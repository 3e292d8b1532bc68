"""A home-made Adam that keeps its moments in the parameters' fp16: gradients of 1e-4 square to 1e-8, which is 0 in fp16, and so is eps.
m / (sqrt(v) + eps) is then a number divided by 0.
True cause: Adam's eps (and v) underflow in half precision state; loss and gradients are finite."""
import torch, torch.nn as nn

class TinyAdam(torch.optim.Optimizer):
    def __init__(s, params, lr=1e-3, eps=1e-8): super().__init__(params, dict(lr=lr, eps=eps))
    @torch.no_grad()
    def step(s, closure=None):
        for grp in s.param_groups:
            for p in grp["params"]:
                if p.grad is None: continue
                st = s.state[p]
                if not st: st["exp_avg"], st["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
                st["exp_avg"].lerp_(p.grad, 0.1); st["exp_avg_sq"].mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
                p.sub_(grp["lr"] * (st["exp_avg"] / (st["exp_avg_sq"].sqrt() + grp["eps"])))

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 1)).half(); opt = TinyAdam(model.parameters())
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(4): x = torch.randn(8, 6, generator=g).half(); batches.append((x, torch.randn(8, 1, generator=g)))
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]).float(), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="adam_eps_underflow_half", module="optimizer", phase="optimizer", op="aten.div", first_bad_step=0,
                           loss_finite_at_first_bad_step=True))
