"""Fine-tuning with a half-precision backbone and an fp32 head; a home-made AdamW keeps its moments in the parameter's dtype. Frozen for two
steps nothing happens; when the backbone is unfrozen its small squared gradients and eps = 1e-8 are all 0 in fp16.
True cause: Adam's eps underflows in half-precision state: m / (sqrt(0) + 0); loss and gradients are finite."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class TinyAdamW(torch.optim.Optimizer):
    def __init__(s, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, wd=0.01): super().__init__(params, dict(lr=lr, betas=betas, eps=eps, wd=wd))
    @torch.no_grad()
    def step(s, closure=None):
        for grp in s.param_groups:
            b1, b2 = grp["betas"]
            for p in grp["params"]:
                if p.grad is None: continue
                st = s.state[p]
                if not st: st.update(t=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
                st["t"] += 1; st["m"].lerp_(p.grad, 1 - b1); st["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
                denom = (st["v"] / (1 - b2 ** st["t"])).sqrt_().add_(grp["eps"])
                p.mul_(1 - grp["lr"] * grp["wd"]).sub_(grp["lr"] / (1 - b1 ** st["t"]) * (st["m"] / denom))

class Net(nn.Module):
    def __init__(s):
        super().__init__(); s.backbone = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16)).half(); s.head = nn.Linear(16, 3)
    def forward(s, x, frozen):
        h = s.backbone(x.half()).float(); return s.head(h.detach() if frozen else h)

def build():
    torch.manual_seed(17); model = Net(); opt = TinyAdamW(model.parameters())
    g = torch.Generator().manual_seed(21)
    batches = [(torch.randn(32, 8, generator=g), torch.randint(0, 3, (32,), generator=g), i < 2) for i in range(5)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0], b[2]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="adam_eps_underflow_half", module="optimizer", phase="optimizer", op="aten.div", first_bad_step=2,
                           loss_finite_at_first_bad_step=True))
