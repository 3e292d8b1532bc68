"""Own RMSProp without eps. The embedding is frozen for three steps; when it is unfrozen, the rows of absent tokens have gradient 0 and
second moment 0: 0/0 in the update. The unfreezing also multiplies the rate by 10 (innocent)."""
import torch, torch.nn as nn

class RMS(torch.optim.Optimizer):
    def __init__(s, params, lr=1e-3, rho=0.9, eps=0.0): super().__init__(params, dict(lr=lr, rho=rho, eps=eps))
    @torch.no_grad()
    def step(s, closure=None):
        for q in s.param_groups:
            for p in q["params"]:
                if p.grad is None: continue
                st = s.state[p]
                if not st: st["v"] = torch.zeros_like(p)
                st["v"].mul_(q["rho"]).addcmul_(p.grad, p.grad, value=1 - q["rho"])
                p.sub_(q["lr"] * (p.grad / (st["v"].sqrt() + q["eps"])))

def build(fix=None):
    torch.manual_seed(0); model = nn.Sequential(nn.Embedding(30, 8), nn.Linear(8, 30)); model[0].weight.requires_grad_(False)
    opt = RMS(model.parameters(), eps=1e-8 if fix == "true" else 0.0); g = torch.Generator().manual_seed(1)
    batches = [(torch.randint(0, 20, (64,), generator=g), torch.randint(0, 30, (64,), generator=g), k) for k in range(6)]
    def loss_fn(m, b):
        if b[2] == 3:
            m[0].weight.requires_grad_(True)
            if fix != "innocent": opt.param_groups[0]["lr"] = 1e-2
        return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="optimizer", phase="optimizer", op="aten.div", first_bad_step=3, loss_finite_at_first_bad_step=True, param="0.weight",
                           also=["adam_eps_underflow_half"], why="own optimizer: 0/(sqrt(0)+0) for rows of absent tokens, all in fp32"))
