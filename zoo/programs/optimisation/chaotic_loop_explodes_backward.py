"""A learned logistic map iterated 200 times in one module: every value stays in [0, 1], the gradient is multiplied by up to 4 in each round.
True cause: exploding gradient through a loop; the forward pass is bounded."""
import torch, torch.nn as nn

class Map(nn.Module):
    def __init__(s): super().__init__(); s.r = nn.Parameter(torch.tensor(3.99)); s.x0 = nn.Linear(3, 1)
    def forward(s, x):
        y = torch.sigmoid(s.x0(x))
        for _ in range(260): y = s.r * y * (1 - y)
        return y.squeeze(-1)
def build():
    torch.manual_seed(0); model = Map(); opt = torch.optim.SGD(model.parameters(), lr=1e-30); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, 3, generator=g), torch.rand(4, generator=g)) for _ in range(2)]
    def loss_fn(m, b): return (m(b[0]) - b[1]).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="exploding_gradient", module="loss", phase="backward", op="aten.mul", first_bad_step=0))
