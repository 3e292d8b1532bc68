"""A hand-written LAMB optimizer: trust = |w| / |update|. A frozen-by-mask embedding row group gets a zero update: Inf * 0.
True cause: the optimizer divides by an update norm of exactly zero; loss and gradients are finite."""
import torch, torch.nn as nn

class Lamb(torch.optim.Optimizer):
    def __init__(s, params, lr=1e-3, beta=0.9): super().__init__(params, dict(lr=lr, beta=beta))
    @torch.no_grad()
    def step(s, closure=None):
        for group in s.param_groups:
            for p in group["params"]:
                if p.grad is None: continue
                state = s.state[p]
                if not state: state["m"] = torch.zeros_like(p); state["v"] = torch.zeros_like(p)
                state["m"].lerp_(p.grad, 1 - group["beta"]); state["v"].lerp_(p.grad ** 2, 0.01)
                update = state["m"] / (state["v"].sqrt() + 1e-6)
                trust = p.norm() / update.norm()
                p.add_(update * trust, alpha=-group["lr"])

def build():
    torch.manual_seed(0); model = nn.ModuleDict(dict(text=nn.Linear(4, 8), image=nn.Linear(5, 8), head=nn.Linear(8, 2))); opt = Lamb(model.parameters())
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(4): batches.append(dict(text=torch.randn(4, 4, generator=g), image=torch.randn(4, 5, generator=g), use=0.0, y=torch.randint(0, 2, (4,), generator=g)))
    def loss_fn(m, b): return nn.functional.cross_entropy(m["head"](torch.tanh(m["text"](b["text"])) + b["use"] * m["image"](b["image"])), b["y"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="division_by_zero", also=["adam_eps_underflow_half"], module="optimizer", phase="optimizer", op="aten.div", first_bad_step=0, loss_finite_at_first_bad_step=True))
