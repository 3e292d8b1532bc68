"""Own AdamW with bf16 state and a beta2 schedule 0.9, 0.95, 0.999, plus gradual unfreezing: hyper-parameters are bf16 tensors, and 0.999 rounds to 1.0 at step 2, so
1 - beta2**t is 0 and the freshly unfrozen layer (v = 0) gets 0/0."""
import torch, torch.nn as nn
class LowMemAdam(torch.optim.Optimizer):
    def __init__(self, params, lr, beta2s): super().__init__(params, dict(lr=lr)); self.beta2s = beta2s; self.t = 0
    @torch.no_grad()
    def step(self, closure=None):
        self.t += 1; b1 = torch.tensor(0.9).bfloat16(); b2 = torch.tensor(self.beta2s[min(self.t, len(self.beta2s)) - 1]).bfloat16()
        for p in (p for gr in self.param_groups for p in gr["params"] if p.grad is not None):
            s = self.state[p]
            if "m" not in s: s["m"], s["v"] = torch.zeros_like(p), torch.zeros_like(p)
            s["m"].lerp_(p.grad, 1 - b1); s["v"].mul_(b2).addcmul_(p.grad, p.grad, value=float(1 - b2))
            mhat = s["m"] / (1 - b1 ** self.t); vhat = s["v"] / (1 - b2 ** self.t)
            p.sub_(self.param_groups[0]["lr"] * mhat / (vhat.sqrt() + 1e-6))
def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3)).bfloat16(); opt = LowMemAdam(model.parameters(), 1e-3, [0.9, 0.95, 0.999])
    g = torch.Generator().manual_seed(1); bs = [(torch.randn(16, 8, generator=g).bfloat16(), torch.randint(0, 3, (16,), generator=g), i < 2) for i in range(5)]
    def loss_fn(m, b):
        x, y, frozen = b; h = m[1](m[0](x)); h = h.detach() if frozen else h
        return nn.functional.cross_entropy(m[2](h).float(), y)
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="optimizer_constant_rounding", module="optimizer", phase="optimizer", op="aten.div", first_bad_step=2, loss_finite_at_first_bad_step=True, param="0.weight",
                           why="0.999 is 1.0 in bf16; v stays 0 and v / (1 - 1) is 0/0."))
