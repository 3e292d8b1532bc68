"""A quantisation observer adds the energy of what it sees to an fp16 buffer, in place, in every forward; the sum passes 65504 after some
steps. Only eval reads it, so training shows nothing at all.
True cause: a buffer that is updated in forward is poisoned (observer.energy)."""
import torch, torch.nn as nn

class Observer(nn.Module):
    def __init__(s): super().__init__(); s.register_buffer("energy", torch.zeros(5, dtype=torch.float16))
    def forward(s, x):
        if not s.training: return x / s.energy.float().sqrt()
        s.energy.add_(x.detach().square().sum(0).half()); return x
class Net(nn.Module):
    def __init__(s): super().__init__(); s.inp = nn.Linear(3, 5); s.observer = Observer(); s.out = nn.Linear(5, 1)
    def forward(s, x): return s.out(torch.tanh(s.observer(s.inp(x))))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(64, 3, generator=g) * 18.0, torch.randn(64, 1, generator=g)) for _ in range(8)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="bn_buffers_poisoned", module="observer", phase="forward", op="aten.add_", first_bad_step=5,
                           loss_finite_at_first_bad_step=True, grads_finite=True, poisoned_state=["observer.energy"]))
