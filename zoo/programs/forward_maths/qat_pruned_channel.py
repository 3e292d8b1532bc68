"""Quantisation-aware training with per-channel weight scales max|w|/127, plus magnitude pruning that legally writes the weights at step 3.
Channel 5 is pruned as a whole: its scale is 0 and w/scale is 0/0. The pruning (finite zeros) is legal; the scale without a floor is the bug."""
import torch, torch.nn as nn

class STERound(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return torch.round(x)
    @staticmethod
    def backward(ctx, g): return g
class QLinear(nn.Module):
    def __init__(s, i, o, fix): super().__init__(); s.weight = nn.Parameter(torch.randn(o, i) * 0.3); s.bias = nn.Parameter(torch.zeros(o)); s.fix = fix
    def forward(s, x):
        sc = s.weight.detach().abs().amax(1, keepdim=True) / 127
        if s.fix == "true": sc = sc.clamp(min=1e-8)
        return nn.functional.linear(x, STERound.apply(s.weight / sc) * sc, s.bias)
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.q1 = QLinear(6, 12, fix); s.q2 = QLinear(12, 2, fix); s.t = 0
    def forward(s, x): return s.q2(torch.relu(s.q1(x)))

def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.SGD(model.parameters(), lr=0.01 if fix == "innocent" else 0.1); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model.q1.weight[5].mul_(0.01)                 # a weak channel
    batches = [(torch.randn(8, 6, generator=g), torch.randint(0, 2, (8,), generator=g), k) for k in range(6)]
    def loss_fn(m, b):
        if b[2] == 3:
            with torch.no_grad():
                w = m.q1.weight; n = w.norm(dim=1); w.mul_((n > n.kthvalue(1).values)[:, None])     # structured pruning: drop the weakest
        return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="q1", phase="forward", op="aten.div", first_bad_step=3, loss_finite_at_first_bad_step=False,
                           why="scale of an all-zero channel is exactly 0; the written weights themselves are finite"))
