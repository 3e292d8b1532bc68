"""In half precision the mask value finfo.min is added to a negative distance bias, the sum is -inf, and a fully padded row becomes NaN.
After https://github.com/lucidrains/nGPT-pytorch/issues/11 (a mask of -finfo.max yields NaN gradients; -10 works).
True cause: the mask value overflows when something is added to it."""
import torch
from torch import nn


class Biased(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x, pad):
        s = self.q(x) @ self.k(x).transpose(1, 2)
        n = x.shape[1]
        bias = -64.0 * (torch.arange(n)[:, None] - torch.arange(n)[None]).abs().to(x.dtype) - 32.0
        mask = pad[:, None, :].to(x.dtype) * torch.finfo(x.dtype).min
        s = s + (bias + mask)
        return torch.softmax(s, dim=-1) @ self.v(x)


def build():
    torch.manual_seed(0)
    model = nn.ModuleDict({"att": Biased(), "head": nn.Linear(8, 2)}).half()
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(1)
    batches = []
    for lengths in ([5, 4], [3, 5], [5, 0], [5, 5]):
        pad = torch.arange(5)[None] >= torch.tensor(lengths)[:, None]
        batches.append({"x": torch.randn(2, 5, 8, generator=g).half(), "pad": pad, "y": torch.tensor([0, 1])})

    def loss_fn(m, b):
        pooled = m["att"](b["x"], b["pad"]).mean(1)
        return nn.functional.cross_entropy(m["head"](pooled).float(), b["y"])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="mask_overflow", also=("softmax_fully_masked_row",), module="att", phase="forward", op="aten.add", also_op=("aten._softmax",), first_bad_step=2, line="s = s + (bias + mask)", sample=1))
