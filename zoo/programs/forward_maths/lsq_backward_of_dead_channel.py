"""Learned-step quantisation as an own autograd.Function. Forward guards the scale of a dead channel, the hand-written backward does not.
True cause: x / scale with scale exactly 0 inside the custom backward; the loss is finite."""
import torch, torch.nn as nn

class FakeQuant(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        safe = torch.where(scale == 0, torch.ones_like(scale), scale)
        return torch.round((x / safe).clamp(-8, 7)) * scale
    @staticmethod
    def backward(ctx, gy):
        x, scale = ctx.saved_tensors
        q = x / scale
        inside = (q > -8) & (q < 7)
        gx = gy * inside
        gs = (gy * (torch.round(q.clamp(-8, 7)) - q * inside)).sum(0)
        return gx, gs
class QuantAct(nn.Module):
    def forward(s, x): return FakeQuant.apply(x, x.detach().abs().amax(0) / 7 * s.gain)
    def __init__(s, d): super().__init__(); s.gain = nn.Parameter(torch.ones(d))
class Block(nn.Module):
    def __init__(s, i, o): super().__init__(); s.fc = nn.Linear(i, o); s.quant = QuantAct(o)
    def forward(s, x): return s.quant(torch.relu(s.fc(x)))

def build():
    torch.manual_seed(0); model = nn.Sequential(Block(6, 12), Block(12, 12), nn.Linear(12, 3))
    with torch.no_grad():
        for b in (model[0], model[1]): b.fc.weight.mul_(0.2); b.fc.bias.fill_(2.0)
        model[0].fc.weight[2].copy_(torch.tensor([1.0, 0, 0, 0, 0, 0])); model[0].fc.bias[2] = 0.8    # follows feature 0
        model[1].fc.weight[4].zero_(); model[1].fc.weight[4, 2] = -1.0; model[1].fc.bias[4] = 1.5     # and is held down by it
    opt = torch.optim.SGD(model.parameters(), lr=0.01); g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        x = torch.randn(8, 6, generator=g); x[:, 0] = x[:, 0].clamp(-0.4, 0.2)
        if i == 4: x[:, 0] = 5.0                                          # channel 4 of block 1 is dead for this whole batch
        batches.append((x, torch.randint(0, 3, (8,), generator=g)))
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="division_by_zero", also=["singular_gradient_at_zero"], module="1.quant", phase="backward", op="aten.div", first_bad_step=4, loss_finite_at_first_bad_step=True))
