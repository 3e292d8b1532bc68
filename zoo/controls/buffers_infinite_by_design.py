"""CONTROL: a GNN with max pooling over neighbours (scatter starts at -inf, empty nodes become 0) and buffers that hold Inf by design: the best loss so far and a causal mask."""
import torch, torch.nn as nn

class MaxPool(nn.Module):
    def __init__(s): super().__init__(); s.msg = nn.Linear(4, 8)
    def forward(s, h, edges):
        i, j = edges; m = s.msg(h)[j]; out = torch.full((h.shape[0], 8), float("-inf")).scatter_reduce(0, i[:, None].expand(-1, 8), m, "amax")
        return out.masked_fill(out == float("-inf"), 0.0)
class Gnn(nn.Module):
    def __init__(s):
        super().__init__(); s.pool = MaxPool(); s.out = nn.Linear(8, 2); s.register_buffer("best", torch.tensor(float("inf"))); s.register_buffer("range", torch.tensor([float("inf"), float("-inf")]))
        s.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))
    def forward(s, h, edges):
        with torch.no_grad(): s.range.copy_(torch.stack([torch.minimum(s.range[0], h.min()), torch.maximum(s.range[1], h.max())]))
        return s.out(s.pool(h, edges))

def build():
    torch.manual_seed(0); model = Gnn(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(5, 4, generator=g), torch.tensor([[0, 0, 1, 2, 3], [1, 2, 0, 3, 1]]), torch.randint(0, 2, (5,), generator=g)) for _ in range(6)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0], b[1]), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
