"""Rotary embedding whose frequencies were cast to half precision with the model: the positions are cast to the dtype of the frequencies. Position 65520 and
all later ones are inf in float16, and cos(inf) is NaN.
After https://github.com/NVIDIA/Megatron-LM/issues/535 (with fp16 the positions are cast to fp16 and exceed its range for long sequences).
True cause: overflow of half precision in forward."""
import torch
from torch import nn


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, base=10000.0):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / base ** (torch.arange(0, dim, 2).float() / dim))

    def forward(self, positions):
        freqs = positions.type_as(self.inv_freq)[:, None] * self.inv_freq
        return freqs.float().cos(), freqs.float().sin()


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


class LocalAttention(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.rope = RotaryEmbedding(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x, positions):
        q, k, v = self.qkv(x).chunk(3, -1)
        cos, sin = self.rope(positions)
        return self.out(nn.functional.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True))


class Reader(nn.Module):
    def __init__(self, vocab=21, d=16):
        super().__init__()
        self.emb, self.attn, self.head = nn.Embedding(vocab, d), LocalAttention(d), nn.Linear(d, vocab)

    def forward(self, ids, positions):
        h = self.emb(ids)
        return self.head(h + self.attn(h, positions))


def build():
    torch.manual_seed(0)
    model = Reader()
    model.attn.rope.half()                                       # keeps memory of the cached tables low
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(2)
    offsets = [0, 4096, 16384, 32768, 65536, 8192]               # windows of long documents
    batches = [(torch.randint(0, 21, (2, 13), generator=g), torch.arange(12) + off) for off in offsets]

    def loss_fn(m, b):
        ids, positions = b
        return nn.functional.cross_entropy(m(ids[:, :-1], positions).flatten(0, 1), ids[:, 1:].flatten())

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="fp16_forward_overflow", module="attn.rope", phase="forward", op="aten._to_copy", first_bad_step=4,
                           line="freqs = positions.type_as(self.inv_freq)", why="65536 is inf in float16"))
