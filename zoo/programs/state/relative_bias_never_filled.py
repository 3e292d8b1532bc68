"""Windowed attention with a relative-position table kept as a buffer made by torch.empty. The filling loop runs over the first
layers only (range(depth - 1)), so the last layer's table is whatever was in memory.
True cause: uninitialised memory (made deterministic by PyTorch's own fill_uninitialized_memory while building)."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class WindowAttention(nn.Module):
    def __init__(self, d=16, n=6):
        super().__init__()
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.register_buffer("bias_table", torch.empty(n, n))

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + self.proj((q @ k.transpose(1, 2) / 4 + self.bias_table).softmax(-1) @ v)


class Encoder(nn.Module):
    def __init__(self, depth=3, n=6):
        super().__init__()
        self.layers = nn.ModuleList([WindowAttention(n=n) for _ in range(depth)])
        self.head = nn.Linear(16, 5)
        distance = (torch.arange(n)[:, None] - torch.arange(n)[None]).abs().float()
        for i in range(depth - 1):
            self.layers[i].bias_table.copy_(-distance * 2.0 ** -i)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def build():
    torch.manual_seed(0)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        model = Encoder()
    finally:
        torch.use_deterministic_algorithms(before)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, 6, 16, generator=g), torch.randint(0, 5, (4,), generator=g)) for _ in range(3)]

    def loss_fn(m, b):
        return F.cross_entropy(m(b[0]), b[1])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="uninitialised_memory", module="layers.2", phase="forward", op="aten.empty", first_bad_step=0,
                           state="layers.2.bias_table", also=dict(phase=["state"], op=["aten.add"])))
