"""Dense graph attention without self-loops: a molecule in batch 3 has an atom with no bond, so its attention row is all -inf.
True cause: fully masked row. The -inf for absent edges is normal in every batch."""
import torch, torch.nn as nn

class Head(nn.Module):
    def __init__(s, d, k): super().__init__(); s.w = nn.Linear(d, k, bias=False); s.src = nn.Linear(k, 1); s.dst = nn.Linear(k, 1)
    def forward(s, x, adj):
        h = s.w(x)
        e = nn.functional.leaky_relu(s.src(h) + s.dst(h).transpose(1, 2), 0.2)
        return e.masked_fill(adj == 0, -torch.inf).softmax(-1) @ h
class GATLayer(nn.Module):
    def __init__(s, d): super().__init__(); s.heads = nn.ModuleList([Head(d, d // 2) for _ in range(2)]); s.norm = nn.LayerNorm(d)
    def forward(s, x, adj): return s.norm(x + torch.cat([h(x, adj) for h in s.heads], -1))
class GAT(nn.Module):
    def __init__(s):
        super().__init__(); s.inp = nn.Linear(5, 8); s.layers = nn.ModuleList([GATLayer(8), GATLayer(8)]); s.out = nn.Linear(8, 1)
    def forward(s, x, adj):
        x = s.inp(x)
        for l in s.layers: x = l(x, adj)
        return s.out(x.mean(1))

def build():
    torch.manual_seed(0); model = GAT(); opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(7):
        n = 6; ring = torch.zeros(n, n)
        for k in range(n): ring[k, (k + 1) % n] = ring[(k + 1) % n, k] = 1
        adj = ring.repeat(4, 1, 1)
        if i == 3: adj[2, 5, :] = 0; adj[2, :, 5] = 0                 # a counter-ion: no bond at all
        batches.append((torch.randn(4, n, 5, generator=g), adj, torch.randn(4, 1, generator=g)))
    def loss_fn(m, b): return nn.functional.smooth_l1_loss(m(b[0], b[1]), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="softmax_fully_masked_row", module="layers.0.heads.0", phase="forward", op="aten._softmax", first_bad_step=3))
