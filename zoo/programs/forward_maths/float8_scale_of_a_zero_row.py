"""Dynamic float8 quantisation of activations per row: the row of a padding token is all zeros, its scale is 0, and 0 / 0 is NaN.
After https://github.com/pytorch/ao/issues/3356 (NaN losses; fixed by adding a small epsilon when calculating the scales).
True cause: division by zero."""
import torch
import torch.nn as nn

E4M3_MAX = 448.0


class RowwiseFp8(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        scale = x.abs().amax(-1, keepdim=True) / E4M3_MAX
        q = (x / scale).to(torch.float8_e4m3fn)
        return q.to(x.dtype) * scale

    @staticmethod
    def backward(ctx, g):
        return g


class Fp8Linear(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(RowwiseFp8.apply(x), self.weight, self.bias)


def build():
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), Fp8Linear(16, 4))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(3)
    xs = [torch.randn(5, 6, generator=g) for _ in range(4)]
    keep = [torch.ones(5, 1) for _ in range(4)]
    keep[2][4] = 0.0                                          # the token of a padded position

    def loss_fn(m, k):
        h = m[1](m[0](xs[k])) * keep[k]
        return m[2](h).square().mean()

    return dict(model=model, optimizer=opt, batches=list(range(4)), loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="2", phase="forward", op="aten.div", first_bad_step=2, line="q = (x / scale)", sample=4))
