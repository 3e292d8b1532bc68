"""A signal-to-noise optimizer that stores its decay rates beside the weights, in the weights' dtype, so that a fused kernel can read them.
For the bf16 backbone the slow decay 0.9985 becomes 1.0: its average never moves and the debiasing divides by 1 - 1**t = 0.
The fp32 head, the first parameters to be updated, is fine.
True cause: an optimizer constant that the state's dtype cannot represent."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class SNR(torch.optim.Optimizer):
    def __init__(s, params, lr=2e-3, fast=0.75, slow=0.9985): super().__init__(params, dict(lr=lr, fast=fast, slow=slow))
    @torch.no_grad()
    def step(s, closure=None):
        for grp in s.param_groups:
            for p in grp["params"]:
                if p.grad is None: continue
                st = s.state[p]
                if not st:
                    st.update(fast=torch.zeros_like(p), slow=torch.zeros_like(p), decay=p.new_tensor([grp["fast"], grp["slow"]]), power=p.new_ones(2))
                st["power"].mul_(st["decay"]); df, ds = st["decay"]; g = p.grad
                st["fast"].mul_(df).add_(g * (1 - df)); st["slow"].mul_(ds).add_(g.abs() * (1 - ds))
                cf, cs = 1 - st["power"]
                p.sub_(grp["lr"] * (st["fast"] / cf) / (st["slow"] / cs + 1e-2))

class Net(nn.Module):
    def __init__(s):
        super().__init__(); s.head = nn.Linear(12, 2); s.body = nn.Sequential(nn.Linear(5, 12), nn.GELU(), nn.Linear(12, 12)).bfloat16()
    def forward(s, x): return s.head(s.body(x.bfloat16()).float())

def build():
    torch.manual_seed(18); model = Net(); opt = SNR(model.parameters()); g = torch.Generator().manual_seed(22)
    batches = [(torch.randn(10, 5, generator=g), torch.randn(10, 2, generator=g)) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.huber_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="optimizer_constant_rounding", module="optimizer", phase="optimizer", op="aten.div", first_bad_step=0,
                           loss_finite_at_first_bad_step=True))
