"""Molecule graphs with a precomputed 1/distance edge feature: two atoms share one coordinate, so the collated graph carries Inf.
True cause: bad input data (nested under graph.edge_attr); the message passing and the optimizer are innocent."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class Message(nn.Module):
    def __init__(s, d): super().__init__(); s.edge = nn.Linear(2, d); s.node = nn.Linear(d, d)
    def forward(s, h, ei, ea):
        msg = h[ei[0]] * torch.tanh(s.edge(ea))
        return h + torch.nn.functional.silu(s.node(torch.zeros_like(h).index_add_(0, ei[1], msg)))
class Net(nn.Module):
    def __init__(s, d=12):
        super().__init__(); s.emb = nn.Embedding(5, d); s.mp = nn.ModuleList([Message(d) for _ in range(2)]); s.out = nn.Linear(d, 1)
    def forward(s, g):
        h = s.emb(g["z"])
        for m in s.mp: h = m(h, g["edge_index"], g["edge_attr"])
        return s.out(h).mean(0)

def build():
    torch.manual_seed(3); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
    g = torch.Generator().manual_seed(4); batches = []
    for i in range(8):
        pos = torch.randn(9, 3, generator=g); ei = torch.randint(0, 9, (2, 24), generator=g); ei[1] = (ei[0] + 1 + ei[1] % 8) % 9
        if i == 5: pos[ei[1, 17]] = pos[ei[0, 17]]                       # a duplicated atom in the source file
        d = (pos[ei[0]] - pos[ei[1]]).norm(dim=-1)
        batches.append(dict(graph=dict(z=torch.randint(0, 5, (9,), generator=g), edge_index=ei, edge_attr=torch.stack([1 / d, -1 / d], -1)),
                            energy=torch.randn(1, generator=g)))
    def loss_fn(m, b): return nn.functional.smooth_l1_loss(m(b["graph"]), b["energy"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="bad_input_data", module="data", phase="data", op="data", first_bad_step=5, bad_path="graph.edge_attr[17]"))
