"""An Elman cell without a squashing function, unrolled in one module's forward: the state doubles at each of 300 time steps.
True cause: exploding recurrence."""
import torch, torch.nn as nn

class Cell(nn.Module):
    def __init__(s, d): super().__init__(); s.w = nn.Parameter(torch.eye(d) * 1.6 + 0.01 * torch.randn(d, d)); s.u = nn.Parameter(0.1 * torch.randn(3, d))
    def forward(s, x):
        h = x.new_zeros(x.shape[0], s.w.shape[0])
        for t in range(x.shape[1]):
            h = torch.relu(x[:, t] @ s.u + h @ s.w)
        return h
class Net(nn.Module):
    def __init__(s): super().__init__(); s.rnn = Cell(6); s.head = nn.Linear(6, 1)
    def forward(s, x): return s.head(nn.functional.layer_norm(s.rnn(x), (6,))).squeeze(-1)
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=1e-9); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, n, 3, generator=g), torch.randn(4, generator=g)) for n in (8, 12, 10, 300)]
    def loss_fn(m, b): return (m(b[0]) - b[1]).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="exploding_recurrence", module="rnn", phase="forward", op="aten.mm", first_bad_step=3))
