"""A cross entropy kernel keeps a running maximum over tiles of the vocabulary. Logits forbidden by nucleus filtering are -inf; if a whole first tile is forbidden,
the update computes (-inf) - (-inf). The plain softmax of the same row is finite.
After https://github.com/Dao-AILab/flash-attention/issues/1930 (NaN when many of the logits are -inf, depending on where the allowed one lies).
True cause: a wrong kernel; the row has allowed entries."""
import numpy as np
import torch
from torch import nn

TILE = 8


@torch.library.custom_op("blind_kernels::tiled_logsumexp", mutates_args=())
def tiled_logsumexp(logits: torch.Tensor) -> torch.Tensor:
    v = logits.detach().numpy()
    m = np.full(v.shape[:1], -np.inf, np.float32)
    s = np.zeros_like(m)
    with np.errstate(all="ignore"):
        for c in range(0, v.shape[1], TILE):
            tile = v[:, c:c + TILE]
            new = np.maximum(m, tile.max(1))
            s = s * np.exp(m - new) + np.exp(tile - new[:, None]).sum(1)
            m = new
        return torch.from_numpy(m + np.log(s))


def _ctx(ctx, inputs, output):
    ctx.save_for_backward(inputs[0], output)


def _bwd(ctx, grad):
    logits, lse = ctx.saved_tensors
    return grad[:, None] * (logits - lse[:, None]).exp()


tiled_logsumexp.register_autograd(_bwd, setup_context=_ctx)


class TiledCrossEntropy(nn.Module):
    def forward(self, logits, target):
        return (tiled_logsumexp(logits) - logits.gather(1, target[:, None]).squeeze(1)).mean()


class Speaker(nn.Module):
    def __init__(self, d=10, vocab=32):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d, 32), nn.Mish())
        self.head = nn.Linear(32, vocab)
        self.criterion = TiledCrossEntropy()

    def forward(self, x, allowed, target):
        return self.criterion(self.head(self.body(x)).masked_fill(~allowed, float("-inf")), target)


def build():
    torch.manual_seed(0)
    model = Speaker()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    g = torch.Generator().manual_seed(4)
    batches = []
    for i in range(5):
        target = torch.randint(9, 32, (5,), generator=g)
        allowed = torch.rand(5, 32, generator=g) < 0.5
        allowed[:, 2] = True
        if i == 3:
            allowed[4, :TILE] = False
        allowed[torch.arange(5), target] = True
        batches.append((torch.randn(5, 10, generator=g), allowed, target))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: m(*b), steps=5, autocast_dtype=None,
                truth=dict(cause="backend_or_kernel_bug", module="criterion", phase="forward", op="blind_kernels.tiled_logsumexp", first_bad_step=3, sample=4,
                           line="tiled_logsumexp(logits) -", **{"not": ("softmax_fully_masked_row",)},
                           why="row 4 has allowed entries; torch.logsumexp of it is finite"))
