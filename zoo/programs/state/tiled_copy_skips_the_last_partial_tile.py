"""A registered division kernel walks over its rows in whole tiles of 16 and has no bounds check for the rest. All batches are multiples of 16 but the last one,
whose final rows are never written.
After https://github.com/NVlabs/COAT/issues/19 (kernels cannot handle shapes that are not divisible by 16, 32 or 64; NaN in training).
True cause: memory that was never written."""
import torch
from torch import nn

TILE = 16


@torch.library.custom_op("blind_kernels::scaled_rows", mutates_args=())
def scaled_rows(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    torch.use_deterministic_algorithms(True)             # fills torch.empty with NaN, as debug runs do
    out = torch.empty(x.shape)
    torch.use_deterministic_algorithms(False)
    for first in range(0, len(x) // TILE * TILE, TILE):
        rows = slice(first, first + TILE)
        out[rows] = x[rows] / scale
    return out


def _save(ctx, inputs, output):
    ctx.save_for_backward(inputs[1])


def _grads(ctx, grad):
    return grad / ctx.saved_tensors[0], None


scaled_rows.register_autograd(_grads, setup_context=_save)


class ScaledLinear(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.linear = nn.Linear(d_in, d_out)
        self.register_buffer("scale", torch.tensor(1.5))

    def forward(self, x):
        return self.linear(scaled_rows(x, self.scale))


def build():
    torch.manual_seed(0)
    net = nn.Sequential(ScaledLinear(7, 20), nn.GELU(), nn.Linear(20, 4))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, weight_decay=0.01)
    g = torch.Generator().manual_seed(8)
    x, y = torch.randn(150, 7, generator=g), torch.randint(0, 4, (150,), generator=g)
    epoch = list(zip(x.split(32), y.split(32)))          # 32, 32, 32, 32, 22

    def loss_fn(model, batch):
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    return dict(model=net, optimizer=opt, batches=epoch, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="uninitialised_memory", also=("backend_or_kernel_bug",), module="0", phase="forward", op="aten.empty",
                           also_op=("blind_kernels.scaled_rows",), first_bad_step=4, line="self.linear(scaled_rows(x, self.scale))",
                           why="rows 16 to 21 of the last batch lie in a partial tile that the kernel does not visit"))
