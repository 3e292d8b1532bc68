"""A fused layer-norm kernel (here a registered custom operation) takes the variance in one pass, E[x^2] - E[x]^2: far from 0 it rounds to a negative number.
True cause: a wrong kernel; F.layer_norm of the same input (about 5000 plus small differences, batch 2) is finite."""
import numpy as np, torch, torch.nn as nn

@torch.library.custom_op("zoo_more_kernels::one_pass_layer_norm", mutates_args=())
def one_pass_layer_norm(x: torch.Tensor) -> torch.Tensor:
    v = x.detach().numpy(); mean = v.mean(-1, keepdims=True); var = (v * v).mean(-1, keepdims=True) - mean * mean
    with np.errstate(all="ignore"): return torch.from_numpy((v - mean) / np.sqrt(var + np.float32(1e-5)))
def _backward(ctx, grad):
    (x,) = ctx.saved_tensors
    with torch.enable_grad(): x = x.detach().requires_grad_(); y = nn.functional.layer_norm(x, x.shape[-1:])
    return torch.autograd.grad(y, x, grad)[0]
one_pass_layer_norm.register_autograd(_backward, setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]))

class FusedNorm(nn.Module):
    def __init__(s, d): super().__init__(); s.scale = nn.Parameter(torch.ones(d))
    def forward(s, x): return one_pass_layer_norm(x) * s.scale
class Net(nn.Module):
    def __init__(s): super().__init__(); s.norm = FusedNorm(8); s.fc = nn.Linear(8, 1)
    def forward(s, x): return s.fc(s.norm(x))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.RAdam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(16, 8, generator=g) * (0.02 if i == 2 else 1.0) + (5000.0 if i == 2 else 0.0), torch.randn(16, 1, generator=g)) for i in range(4)]
    def loss_fn(m, b): return nn.functional.huber_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="backend_or_kernel_bug", module="norm", phase="forward", op="zoo_more_kernels.one_pass_layer_norm", first_bad_step=2))
