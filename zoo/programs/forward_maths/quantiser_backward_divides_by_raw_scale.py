"""Own fake-quantise Function: forward guards the scale, its hand-written backward divides by the raw scale, 0 for a blank row."""
import torch, torch.nn as nn, torch.nn.functional as F
class Q(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, safe):
        s = x.abs().amax(-1, keepdim=True); ctx.save_for_backward(s); ctx.safe = safe; s = s.clamp_min(1e-6)
        return torch.round(x / s * 7) / 7 * s
    @staticmethod
    def backward(ctx, g):
        s, = ctx.saved_tensors
        if ctx.safe: s = s.clamp_min(1e-6)
        return g * s / s, None
class FakeQuant(nn.Module):
    def __init__(s, safe): super().__init__(); s.safe = safe
    def forward(s, x): return Q.apply(x, s.safe)
class Net(nn.Module):
    def __init__(s, fix):
        super().__init__(); s.a = nn.Linear(6, 8, bias=False); s.ln = nn.Identity() if fix == "innocent" else nn.LayerNorm(8, elementwise_affine=False)
        s.fq = FakeQuant(fix == "true"); s.b = nn.Linear(8, 1)
    def forward(s, x): return s.b(s.fq(s.ln(s.a(x))))
def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.SGD(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 6, generator=g), torch.randn(8, 1, generator=g)) for _ in range(5)]; batches[2][0][3] = 0
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: F.mse_loss(m(b[0]), b[1]), steps=5, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="fq", phase="backward", op="aten.div", first_bad_step=2,
                           loss_finite_at_first_bad_step=True, also=[], why="the custom backward computes 0/0 with the unguarded scale; LayerNorm of a constant row is safe"))
