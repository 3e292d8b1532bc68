"""Cosine similarity by hand in float16: x / (norm + 1e-8); the epsilon is 0 in this dtype and one document is empty.
Written for this.
True cause: the epsilon underflows in half precision."""
import torch
from torch import nn


class Tower(nn.Module):
    def __init__(self, vocab=30, d=8):
        super().__init__()
        self.table = nn.Embedding(vocab, d, padding_idx=0)

    def forward(self, ids):
        v = self.table(ids).sum(1)
        n = (v * v).sum(1, keepdim=True).sqrt()
        return v / (n.detach() + 1e-8)


def build():
    torch.manual_seed(4)
    model = nn.ModuleDict({"tower": Tower()}).half()
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(5)
    docs = [(torch.randint(1, 30, (5, 4), generator=g), torch.randint(1, 30, (5, 4), generator=g)) for _ in range(4)]
    docs[3][1][2] = 0                                         # an empty document: padding only

    def loss_fn(m, pair):
        a, b = m["tower"](pair[0]), m["tower"](pair[1])
        return (1 - (a * b).sum(1)).float().mean()

    return dict(model=model, optimizer=opt, batches=docs, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="eps_underflow_half", also=("division_by_zero", "singular_gradient_at_zero"), module="tower", phase="forward", op="aten.div", first_bad_step=3, line="return v / (n.detach() + 1e-8)", sample=2))
