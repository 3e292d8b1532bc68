"""CONTROL: buffers that are non-finite BY DESIGN: best = Inf, a range observer with min=+Inf / max=-Inf until calibrated, and a causal mask of -Inf. All from the beginning, never in a gradient."""
import torch, torch.nn as nn
class Observer(nn.Module):
    def __init__(s): super().__init__(); s.register_buffer("lo", torch.tensor(float("inf"))); s.register_buffer("hi", torch.tensor(float("-inf"))); s.register_buffer("spare", torch.full((3,), float("nan")))
    def forward(s, x, on):
        if on:
            with torch.no_grad(): s.lo.copy_(torch.minimum(s.lo, x.min())); s.hi.copy_(torch.maximum(s.hi, x.max()))
        return x
class Net(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Linear(6, 8); s.obs = Observer(); s.b = nn.Linear(8, 6); s.register_buffer("best", torch.tensor(float("inf"))); s.register_buffer("mask", torch.full((5, 5), float("-inf")).triu(1))
    def forward(s, x, on):
        h = s.obs(s.a(x), on); return s.b(torch.softmax(h @ h.transpose(1, 2) + s.mask, -1) @ h)
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); bs = [(torch.randn(2, 5, 6, generator=g), i >= 4) for i in range(9)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(*b), b[0])
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=9, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None, non_finite_by_design=["best", "mask", "obs.lo", "obs.hi", "obs.spare"], why="The non-finite buffers are initial values by design."))
