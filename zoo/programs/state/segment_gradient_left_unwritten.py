"""A hand-written backward allocates the input gradient with torch.empty and fills only the kept rows; the rows of a truncated segment keep old memory.
After https://github.com/pytorch/FBGEMM/pull/5754 (at::empty: rows beyond max_length are never written and flow upstream).
True cause: memory that was never written."""
import torch
from torch import nn

MAX_LENGTH = 3


class PackSegments(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, lengths):
        ctx.lengths, ctx.shape = lengths, x.shape
        out, start = x.new_zeros(len(lengths), MAX_LENGTH, x.shape[1]), 0
        for i, n in enumerate(lengths):
            k = min(n, MAX_LENGTH)
            out[i, :k] = x[start:start + k]
            start += n
        return out

    @staticmethod
    def backward(ctx, grad):
        torch.use_deterministic_algorithms(True)             # fills torch.empty with NaN, as debug runs do
        gx, start = torch.empty(ctx.shape), 0
        torch.use_deterministic_algorithms(False)
        for i, n in enumerate(ctx.lengths):
            k = min(n, MAX_LENGTH)
            gx[start:start + k] = grad[i, :k]
            start += n
        return gx, None


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(5, 6)

    def forward(self, x, lengths):
        return PackSegments.apply(self.lin(x), lengths)


def build():
    torch.manual_seed(0)
    model = nn.ModuleDict({"enc": Encoder(), "head": nn.Linear(6, 1)})
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(sum(n), 5, generator=g), n) for n in ([3, 2, 3], [1, 3], [2, 5, 1], [3, 3])]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: m["head"](m["enc"](*b)).square().mean(), steps=4, autocast_dtype=None,
                truth=dict(cause="uninitialised_memory", also=("backend_or_kernel_bug",), module="enc", phase="backward", op="aten.empty", first_bad_step=2, loss_finite_at_first_bad_step=True, line="gx, start = torch.empty("))
