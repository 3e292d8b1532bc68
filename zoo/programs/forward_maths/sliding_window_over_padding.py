"""nn.MultiheadAttention with a sliding window and padding: the queries of padded positions see no key at all; their outputs are dropped, the gradients are NaN all the same.
After https://github.com/pytorch/pytorch/issues/41508 (nn.MultiheadAttention causes gradients to become NaN under some use cases).
True cause: softmax over fully masked rows."""
import torch
from torch import nn

T = 6
WINDOW = torch.full((T, T), float("-inf"))
for i in range(T):
    WINDOW[i, max(0, i - 1):i + 1] = 0.0


class Local(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.attn, self.out = nn.MultiheadAttention(d, 2, batch_first=True), nn.Linear(d, 1)

    def forward(self, x, pad):
        pad = torch.zeros(pad.shape).masked_fill(pad, float("-inf"))
        h, _ = self.attn(x, x, x, key_padding_mask=pad, attn_mask=WINDOW, need_weights=True)
        return self.out(h).squeeze(-1)


def build():
    torch.manual_seed(0)
    model = nn.ModuleDict({"local": Local()})
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = []
    for lengths in ([6, 6, 5], [5, 6, 6], [6, 3, 6], [6, 6, 6]):
        pad = torch.arange(T)[None] >= torch.tensor(lengths)[:, None]
        batches.append((torch.randn(3, T, 8, generator=g), pad, torch.randn(3, T, generator=g)))

    def loss_fn(m, b):
        x, pad, y = b
        out = m["local"](x, pad)
        return (out - y)[~pad].square().mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="softmax_fully_masked_row", module="local.attn", phase="forward", op="aten._softmax", first_bad_step=2, loss_finite_at_first_bad_step=True, line="h, _ = self.attn(", sample=1))
