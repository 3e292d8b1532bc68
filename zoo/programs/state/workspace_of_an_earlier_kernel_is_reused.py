"""A linear attention layer takes its output from a pool of workspaces, as kernels take pages from a caching allocator, and writes only the rows of the packed documents.
In the third batch the pack is shorter than the buffer, and the pool hands out a page on which an earlier softmax over nothing has left NaN.
After https://github.com/fla-org/flash-linear-attention/pull/892 (rows beyond the last document are never written and inherit NaN from a page of an earlier operation).
True cause: memory that was not written by its owner."""
import torch
from torch import nn


class Workspaces:
    """Pages that are handed out again without being cleared."""

    def __init__(self):
        self.free = {}

    def take(self, *shape):
        pages = self.free.setdefault(shape, [])
        return pages.pop() if pages else torch.zeros(shape)

    def give(self, page):
        self.free.setdefault(tuple(page.shape), []).append(page)


POOL = Workspaces()


class PackedLinearAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, cu):
        out = POOL.take(*v.shape)
        for a, b in zip(cu[:-1], cu[1:]):
            out[a:b] = (q[a:b] @ k[a:b].t()).tril() @ v[a:b] / (b - a)
        ctx.save_for_backward(q, k, v)
        ctx.cu = cu
        return out

    @staticmethod
    def backward(ctx, g):
        q, k, v = ctx.saved_tensors
        gq, gk, gv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for a, b in zip(ctx.cu[:-1], ctx.cu[1:]):
            gs = (g[a:b] @ v[a:b].t()).tril() / (b - a)
            gq[a:b], gk[a:b] = gs @ k[a:b], gs.t() @ q[a:b]
            gv[a:b] = (q[a:b] @ k[a:b].t()).tril().t() @ g[a:b] / (b - a)
        return gq, gk, gv, None


class Layer(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, cu):
        return self.out(PackedLinearAttention.apply(*self.qkv(x).chunk(3, -1), cu))


class PackedLM(nn.Module):
    def __init__(self, vocab=12, d=8):
        super().__init__()
        self.emb, self.layer, self.head = nn.Embedding(vocab, d), Layer(d), nn.Linear(d, vocab)

    def forward(self, ids, cu):
        x = self.emb(ids)
        return self.head(x + self.layer(x, cu))


def build():
    torch.manual_seed(0)
    POOL.free.clear()
    model = PackedLM()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(10)
    packs = [[0, 7, 16], [0, 4, 10, 16], [0, 6, 13], [0, 16]]

    def stream():
        for i, cu in enumerate(packs):
            if i == 2:                                        # scores of an empty memory, freed at once
                page = POOL.take(16, 8)
                page.copy_(torch.full((16, 8), float("-inf")).softmax(-1))
                POOL.give(page)
            ids = torch.randint(0, 12, (17,), generator=g)
            yield ids[:-1], cu, torch.where(torch.arange(16) < cu[-1], ids[1:], -100)

    def loss_fn(m, batch):
        ids, cu, labels = batch
        return nn.functional.cross_entropy(m(ids, cu), labels)

    return dict(model=model, optimizer=opt, batches=stream(), loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="uninitialised_memory", also=("backend_or_kernel_bug", "state_overwritten"), module="layer", also_module=("layer.out", "loss"), phase="forward", also_phase=("backward",), op="aten.empty",
                           also_op=("aten.addmm", "aten.mm"), first_bad_step=2, loss_finite_at_first_bad_step=True, line="out = POOL.take(*v.shape)",
                           why="rows 13 to 15 of the page are never written by the layer; the loss ignores them, the gradient of the output projection does not"))
