"""model.half() also casts the buffer of a return normaliser, the running mean of squares: it is updated in every forward and passes 65504. Only eval reads it.
True cause: a buffer that the forward updates is poisoned (returns.square); loss, gradients and weights are finite."""
import torch, torch.nn as nn

class Returns(nn.Module):
    def __init__(s): super().__init__(); s.register_buffer("square", torch.ones(1))
    def forward(s, r):
        if s.training: s.square.copy_(0.9 * s.square.float() + 0.1 * r.float().square().mean())
        return r / (r.abs().amax() if s.training else s.square.sqrt())
class Critic(nn.Module):
    def __init__(s): super().__init__(); s.value = nn.Linear(4, 1); s.returns = Returns()
    def forward(s, obs, r): return nn.functional.l1_loss(s.value(obs).squeeze(-1).float(), s.returns(r).float())

def build():
    torch.manual_seed(0); model = Critic().half(); opt = torch.optim.SGD(model.parameters(), lr=0.01); g = torch.Generator().manual_seed(1)
    batches = [dict(obs=torch.randn(6, 4, generator=g).half(), r=torch.randn(6, generator=g).half() * (300.0 * (i + 1))) for i in range(5)]
    def loss_fn(m, b): return m(**b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="bn_buffers_poisoned", module="returns", phase="forward", op="aten.copy_", first_bad_step=2,
                           loss_finite_at_first_bad_step=True, grads_finite=True, poisoned_state=["returns.square"]))
