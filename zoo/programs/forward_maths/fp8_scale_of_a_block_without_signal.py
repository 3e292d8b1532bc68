"""A linear layer with hand-made fp8 emulation: activations are scaled per block of 8 features so that the largest becomes 448, cast to
float8_e4m3fn and scaled back. In batch 3 the second block (the features of a sensor that was switched off) is zero everywhere: the
scale is 448 / 0 = Inf and 0 * Inf is NaN. The true cause is the division by an amax of zero, not the range of fp8."""
import torch
from torch import nn
import torch.nn.functional as F

E4M3_MAX = 448.0


def quantise(x, block=8):
    b = x.reshape(*x.shape[:-1], -1, block)
    amax = b.detach().abs().amax(dim=(0, -1), keepdim=True)
    scale = E4M3_MAX / amax
    q = (b * scale).to(torch.float8_e4m3fn).float() / scale
    return x + (q.reshape(x.shape) - x).detach()


class Fp8Linear(nn.Linear):
    def forward(self, x):
        return F.linear(quantise(x), self.weight, self.bias)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = Fp8Linear(32, 48)
        self.out = Fp8Linear(48, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.inp(x)))


def loss_fn(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def build():
    torch.manual_seed(3)
    model = Net()
    batches = [(torch.randn(16, 32), torch.randint(0, 3, (16,))) for _ in range(6)]
    batches[3][0][:, 8:16] = 0.0
    truth = dict(
        cause="division_by_zero", first_bad_step=3, phase="forward", module="inp", op="aten.reciprocal", also_op=["aten.div", "aten.mul"],
        line="scale = E4M3_MAX / amax", why="the amax of the second block is exactly zero, its scale Inf; zero times Inf is NaN",
        repair=("E4M3_MAX / amax", "E4M3_MAX / amax.clamp(min=1e-12)"),
    )
    return dict(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3), batches=batches, loss_fn=loss_fn, steps=6,
                autocast_dtype=None, truth=truth)
