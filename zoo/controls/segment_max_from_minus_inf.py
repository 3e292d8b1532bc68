"""CONTROL: a graph readout takes the maximum over each graph's nodes, starting from a tensor of -inf; every graph has a node, so no -inf stays."""
import torch, torch.nn as nn

class SegmentMax(nn.Module):
    def forward(s, x, graph, n):
        start = torch.full((n, x.shape[1]), float("-inf"))
        return start.scatter_reduce(0, graph[:, None].expand_as(x), x, reduce="amax")
class Net(nn.Module):
    def __init__(s): super().__init__(); s.node = nn.Linear(4, 8); s.read = SegmentMax(); s.head = nn.Linear(8, 2)
    def forward(s, x, graph): return s.head(s.read(torch.tanh(s.node(x)), graph, 3))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.RMSprop(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(9, 4, generator=g), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2]), torch.tensor([0, 1, 1])) for _ in range(6)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0], b[1]), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
