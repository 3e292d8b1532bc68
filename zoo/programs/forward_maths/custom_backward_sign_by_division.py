"""A custom autograd.Function: |x|, whose backward computes the sign as x/|x|. Silent frames give x = 0 exactly in batch 2 (bias-free layer): 0/0 in backward.
Forward finite. A correct torch.where(x > 0, sqrt(x), ...) with a safe inner where stands beside it, and its unselected places are the same places."""
import torch, torch.nn as nn

class Abs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): ctx.save_for_backward(x); return x.abs()
    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        return g * (x / x.abs())
class Act(nn.Module):
    def forward(s, x): return Abs.apply(x)
class Root(nn.Module):
    def forward(s, x): ok = x > 0; return torch.where(ok, torch.sqrt(torch.where(ok, x, torch.ones_like(x))), 0.1 * x)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.f = nn.Linear(4, 6, bias=False); s.act = Act(); s.root = Root(); s.h = nn.Linear(6, 1)
    def forward(s, x): y = s.f(x); return s.h(s.act(y) + s.root(y))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 4, generator=g), torch.randn(6, 1, generator=g)) for _ in range(5)]; batches[2][0][1] = 0.0
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", also=["singular_gradient_at_zero"], module="act", phase="backward", op="aten.div", also_op=["aten.abs", "AbsBackward"], first_bad_step=2,
                           loss_finite_at_first_bad_step=True, innocent_module="root",
                           **{"not": ["where_unselected_branch", "bad_input_data", "lr_too_high"]}))
