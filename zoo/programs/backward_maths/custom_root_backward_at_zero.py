"""A power-law activation written as an autograd.Function: sign(x)*sqrt(|x|); its own backward divides by the saved root, and the ReLU before it gives exact zeros.
True cause: infinite slope at zero, in the hand-written backward."""
import torch, torch.nn as nn

class Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.sign() * x.abs().sqrt(); ctx.save_for_backward(y); return y
    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return 0.5 * g / y.abs()
class Act(nn.Module):
    def forward(s, x): return Root.apply(x)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.conv = nn.Conv1d(2, 8, 3); s.act = Act(); s.head = nn.Linear(8, 3)
    def forward(s, x): return s.head(s.act(s.conv(x).clamp(min=0.0) * 1.0).mean(-1))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    nn.init.zeros_(model.conv.bias)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        x = torch.rand(3, 2, 10, generator=g) + 0.1
        if i == 3: x[1] = 0.0
        batches.append((x, torch.randint(0, 3, (3,), generator=g)))
    def prepare(m):
        with torch.no_grad(): m.conv.weight.abs_(); m.conv.bias.clamp_(min=0.0, max=0.0)
    prepare(model); opt.register_step_post_hook(lambda o, *a: prepare(model))       # a non-negative filter bank
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="singular_gradient_at_zero", also=["division_by_zero"], module="act", phase="backward", op="aten.div", first_bad_step=3, loss_finite_at_first_bad_step=True))
