"""Each parameter's gradient is normalised in a hook, g / g.norm(): a parameter whose gradient is exactly zero (a ReLU unit that never fires) becomes 0/0.
True cause: division by a gradient norm of exactly zero, in the hook."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Linear(4, 6); s.gate = nn.Linear(4, 6); s.out = nn.Linear(6, 1)
    def forward(s, x): return s.out(s.a(x) * torch.relu(s.gate(x))).squeeze(-1)

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    nn.init.constant_(model.gate.bias, 3.0); nn.init.constant_(model.gate.weight, 0.1)
    for p in model.parameters(): p.register_hook(lambda g: g / g.norm())
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        x = torch.rand(3, 4, generator=g)
        if i == 3: x = x - 60.0                                # every gate is closed
        batches.append((x, torch.randn(3, generator=g)))
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", also_module=["a", "gate", "out", "a.weight", "gate.weight", "out.weight", ""], phase="backward", op="aten.div", first_bad_step=3, loss_finite_at_first_bad_step=True))
