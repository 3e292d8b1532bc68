"""Ring attention: every rank attends to its own block of keys and the partial results are merged by their log-sum-exp. A sliding window leaves the first two blocks
without any key for the last queries; the merge of two empty blocks subtracts -inf from -inf, although the third block has keys.
After https://github.com/flashinfer-ai/flashinfer/pull/4401 (an empty split-KV chunk computes (-inf) - (-inf) in the merge).
True cause: a softmax over nothing is merged with another one."""
import torch
from torch import nn


def block_attention(q, k, v, allowed):
    scores = (q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).masked_fill(~allowed, float("-inf"))
    lse = scores.logsumexp(-1, keepdim=True)
    weights = torch.exp(scores - lse.clamp(min=-1e30))
    return weights @ v, lse


def merge(out, lse, new_out, new_lse):
    total = torch.logaddexp(lse, new_lse)
    return out * torch.exp(lse - total) + new_out * torch.exp(new_lse - total), total


class RingAttention(nn.Module):
    def __init__(self, d=12, block=4, window=None):
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(d, d), nn.Linear(d, 2 * d), nn.Linear(d, d)
        self.block, self.window = block, window

    def forward(self, x):
        q, (k, v) = self.q(x), self.kv(x).chunk(2, -1)
        pos = torch.arange(x.shape[1])
        age = pos[:, None] - pos[None]
        allowed = (age >= 0) & (age < self.window)
        out = lse = None
        for start in range(0, x.shape[1], self.block):
            s = slice(start, start + self.block)
            part = block_attention(q, k[:, s], v[:, s], allowed[:, s])
            out, lse = part if out is None else merge(out, lse, *part)
        return self.o(out)


class LM(nn.Module):
    def __init__(self, vocab=16, d=12):
        super().__init__()
        self.emb, self.attn, self.head = nn.Embedding(vocab, d), RingAttention(d, window=6), nn.Linear(d, vocab)

    def forward(self, ids):
        h = self.emb(ids)
        return self.head(h + self.attn(h))


def build():
    torch.manual_seed(0)
    model = LM()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(9)
    batches = [torch.randint(0, 16, (2, n + 1), generator=g) for n in (4, 4, 4, 16, 4)]

    def loss_fn(m, ids):
        return nn.functional.cross_entropy(m(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="softmax_fully_masked_row", also=("backend_or_kernel_bug",), module="attn", phase="forward", op="aten.sub", first_bad_step=3,
                           line="return out * torch.exp(lse - total)", why="a query after position 12 sees no key of the first two blocks: both log-sums are -inf"))
