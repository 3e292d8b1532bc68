"""A DiT in fp32 with a memory-saving AdamW that keeps moments and coefficients in bf16: beta2 = 0.999 becomes 1.0, the bias correction 1 - beta2^t is 0.
True cause: an optimizer constant that bf16 cannot hold; the model's precision has nothing to do with it."""
import torch, torch.nn as nn

class LowMemAdamW(torch.optim.Optimizer):
    def __init__(s, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, wd=0.01): super().__init__(params, dict(lr=lr, betas=betas, eps=eps, wd=wd))
    @torch.no_grad()
    def step(s, closure=None):
        for grp in s.param_groups:
            c = torch.tensor(grp["betas"], dtype=torch.bfloat16)
            for p in grp["params"]:
                if p.grad is None: continue
                st = s.state[p]
                if len(st) == 0: st["step"] = 0; st["m"] = torch.zeros_like(p, dtype=torch.bfloat16); st["v"] = torch.zeros_like(p, dtype=torch.bfloat16)
                st["step"] += 1; g = p.grad.bfloat16()
                st["m"] = c[0] * st["m"] + (1 - c[0]) * g; st["v"] = c[1] * st["v"] + (1 - c[1]) * g.square()
                corr = 1 - c ** st["step"]
                denom = (st["v"] / corr[1]).sqrt().float() + grp["eps"]
                p.mul_(1 - grp["lr"] * grp["wd"]).sub_(grp["lr"] * (st["m"] / corr[0]).float() / denom)

class DiTBlock(nn.Module):
    def __init__(s, d): super().__init__(); s.norm = nn.LayerNorm(d, elementwise_affine=False); s.ada = nn.Linear(d, 3 * d); s.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
    def forward(s, x, c):
        sh, sc, gt = s.ada(c)[:, None].chunk(3, -1); return x + gt * s.mlp(s.norm(x) * (1 + sc) + sh)
class DiT(nn.Module):
    def __init__(s, d=12): super().__init__(); s.patch = nn.Linear(4, d); s.t = nn.Linear(1, d); s.blocks = nn.ModuleList([DiTBlock(d), DiTBlock(d)]); s.final = nn.Linear(d, 4)
    def forward(s, x, t):
        h, c = s.patch(x), s.t(t)
        for b in s.blocks: h = b(h, c)
        return s.final(h)

def build():
    torch.manual_seed(0); model = DiT(); opt = LowMemAdamW(model.parameters()); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, 6, 4, generator=g), torch.rand(4, 1, generator=g), torch.randn(4, 6, 4, generator=g)) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0] * b[1][:, None] + b[2] * (1 - b[1][:, None]), b[1]), b[0] - b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="optimizer_constant_rounding", module="optimizer", phase="optimizer", op="aten.div", first_bad_step=0, loss_finite_at_first_bad_step=True))
