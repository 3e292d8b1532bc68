"""A hand-written blocked attention kernel. Its output buffer comes from torch.empty and is filled with NaN on purpose, so that a block
that was forgotten would show; the running maximum starts at -Inf and the first key block of some queries is fully masked, which the
kernel guards. Every row of the buffer is written before it is returned. Healthy."""
import torch
from torch import nn


class BlockedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, block=4):
        out = torch.empty_like(q).fill_(float("nan"))
        n = q.shape[1]
        lse = q.new_empty(q.shape[:2])
        for i in range(0, n, block):
            qi = q[:, i:i + block]
            m = q.new_full(qi.shape[:2], float("-inf"))
            total, acc = q.new_zeros(qi.shape[:2]), torch.zeros_like(qi)
            rows = torch.arange(i, min(i + block, n))[:, None]
            for j in range(n - block, -1, -block):
                s = qi @ k[:, j:j + block].transpose(1, 2) * q.shape[-1] ** -0.5
                s = s.masked_fill(torch.arange(j, j + block)[None] > rows, float("-inf"))
                new = torch.maximum(m, s.amax(-1))
                base = torch.where(new == float("-inf"), torch.zeros_like(new), new)
                p, keep = torch.exp(s - base[..., None]), torch.exp(m - base)
                total, acc = total * keep + p.sum(-1), acc * keep[..., None] + p @ v[:, j:j + block]
                m = new
            out[:, i:i + block] = acc / total[..., None]
            lse[:, i:i + block] = m + total.log()
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx, do):
        q, k, v, out, lse = ctx.saved_tensors
        n, scale = q.shape[1], q.shape[-1] ** -0.5
        s = (q @ k.transpose(1, 2) * scale).masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
        p = torch.exp(s - lse[..., None])
        ds = p * (do @ v.transpose(1, 2) - (do * out).sum(-1, keepdim=True)) * scale
        return ds @ k, ds.transpose(1, 2) @ q, p.transpose(1, 2) @ do, None


class Net(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.emb, self.qkv, self.out = nn.Embedding(20, d), nn.Linear(d, 3 * d), nn.Linear(d, 20)

    def forward(self, ids):
        return self.out(BlockedAttention.apply(*self.qkv(self.emb(ids)).chunk(3, -1)))


def loss_fn(model, ids):
    return nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def build():
    torch.manual_seed(68)
    model = Net()
    truth = dict(cause="benign", first_bad_step=None, phase=None, module=None, op=None,
                 why="every NaN of the buffer is overwritten, and -Inf is the neutral element of the running maximum, guarded by where")
    return dict(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3), batches=[torch.randint(0, 20, (4, 13)) for _ in range(4)],
                loss_fn=loss_fn, steps=8, autocast_dtype=None, truth=truth)
