"""Learned simulator trained on short roll-outs; the curriculum then asks for the full horizon of 400 steps. The transition's gain is a little
above one, so the state grows geometrically from call to call and overflows within a single forward.
True cause: an exploding recurrence; short roll-outs with the same weights and the same data are healthy."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class Transition(nn.Module):
    def __init__(s, d=10): super().__init__(); s.a = nn.Linear(d, d); s.b = nn.Linear(d, d)
    def forward(s, x): return x + 0.5 * s.b(nn.functional.leaky_relu(s.a(x), 0.3))
class Sim(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(4, 10); s.step = Transition(); s.dec = nn.Linear(10, 4)
    def forward(s, x, horizon):
        h = s.enc(x)
        for _ in range(horizon): h = s.step(h)
        return s.dec(h)

def build():
    torch.manual_seed(22); model = Sim(); opt = torch.optim.Adam(model.parameters(), lr=1e-4)
    with torch.no_grad(): model.step.a.weight.copy_(nn.init.orthogonal_(torch.empty(10, 10))); model.step.b.weight.copy_(0.9 * model.step.a.weight.t())
    g = torch.Generator().manual_seed(26)
    batches = [(torch.randn(6, 4, generator=g), torch.randn(6, 4, generator=g), t) for t in (2, 2, 3, 3, 4, 400, 400)]
    def loss_fn(m, b): return nn.functional.l1_loss(m(b[0], b[2]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="exploding_recurrence", module="step", phase="forward", op="aten.add", first_bad_step=5))
