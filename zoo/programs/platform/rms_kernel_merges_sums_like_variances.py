"""A registered RMS norm kernel reduces its rows in two halves and merges the partial sums of squares with the correction term of a variance.
The term has a factor of zero, so it does no harm until the square in it overflows: then it is inf * 0. The plain formula stays finite.
After https://github.com/huggingface/candle/pull/3477 (a Welford-shaped merge in the fused RMS norm gives NaN for activations around 1e9).
True cause: a wrong kernel; its input is large and harmless."""
import numpy as np
import torch
from torch import nn


@torch.library.custom_op("blind_kernels::rms_norm_two_pass", mutates_args=())
def rms_norm_two_pass(x: torch.Tensor, eps: float) -> torch.Tensor:
    v = x.detach().numpy()
    half = v.shape[-1] // 2
    a, b = (np.sum(np.square(p), -1, keepdims=True, dtype=np.float32) for p in (v[..., :half], v[..., half:]))
    with np.errstate(all="ignore"):
        delta, n_a, n_b = b - a, half, v.shape[-1] - half
        share = np.float32(n_b // (n_a + n_b))               # an integer division, thus zero
        merged = a + b + delta * delta * np.float32(n_a) * share
        out = v / np.sqrt(merged / v.shape[-1] + np.float32(eps))
    return torch.from_numpy(out.astype(np.float32))


@rms_norm_two_pass.register_fake
def _(x, eps):
    return torch.empty_like(x)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.eps = inputs[1]


def _backward(ctx, grad):
    (x,) = ctx.saved_tensors
    r = torch.rsqrt(x.square().mean(-1, keepdim=True) + ctx.eps)
    n = x * r
    return r * (grad - n * (grad * n).mean(-1, keepdim=True)), None


rms_norm_two_pass.register_autograd(_backward, setup_context=_setup)


class SubNorm(nn.Module):
    def forward(self, x):
        return rms_norm_two_pass(x, 1e-5)


class BitFFN(nn.Module):
    def __init__(self, d=8, inner=16):
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(d, inner), nn.Linear(d, inner), nn.Linear(inner, d)
        self.sub_norm = SubNorm()

    def forward(self, x):
        return self.down(self.sub_norm(torch.relu(self.gate(x)).square() * self.up(x)))


def build():
    torch.manual_seed(0)
    model = nn.Sequential(BitFFN(), nn.Linear(8, 3))
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(6)
    batches = [(torch.randn(6, 8, generator=g) * (6000.0 if i == 2 else 1.0), torch.randint(0, 3, (6,), generator=g)) for i in range(4)]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1]), steps=4, autocast_dtype=None,
                truth=dict(cause="backend_or_kernel_bug", module="0.sub_norm", phase="forward", op="blind_kernels.rms_norm_two_pass", first_bad_step=2,
                           line="return rms_norm_two_pass(x, 1e-5)", why="the mean of squares is finite in float32; the merge term of the kernel is inf * 0"))
