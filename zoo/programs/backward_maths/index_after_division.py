"""Relative error over valid depth pixels: the quotient is taken everywhere and the valid places are picked by an index afterwards. At
the invalid ones the depth estimate of the sparse branch is 0; the incoming gradient is 0 and 0 * (1 / 0) is NaN.
True cause: the derivative of unselected elements (division first, selection later)."""
import torch, torch.nn as nn

class Depth(nn.Module):
    def __init__(s): super().__init__(); s.conv = nn.Conv2d(1, 1, 3, padding=1); s.gain = nn.Parameter(torch.ones(1))
    def forward(s, x, sparse): return nn.functional.softplus(s.conv(x)), s.gain * sparse

def build():
    torch.manual_seed(0); model = Depth(); opt = torch.optim.SGD(model.parameters(), lr=0.01); g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        sparse = torch.rand(2, 1, 6, 6, generator=g) + 0.5
        if i >= 2: sparse = sparse * (torch.rand(2, 1, 6, 6, generator=g) < 0.7)
        batches.append(dict(image=torch.randn(2, 1, 6, 6, generator=g), sparse=sparse))
    def loss_fn(m, b):
        depth, sparse = m(b["image"], b["sparse"])
        ratio = depth / sparse
        return (ratio[b["sparse"] > 0] - 1.0).abs().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", module="loss", phase="backward", op="aten.div", first_bad_step=2,
                           loss_finite_at_first_bad_step=True))
