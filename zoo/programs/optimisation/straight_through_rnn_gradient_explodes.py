"""A recurrent net with a clamped state and a straight-through derivative (custom autograd.Function), trained on sequences that double in
length each step. The forward is bounded; the gradient is multiplied by W at every position and grows from step to step until it overflows.
True cause: an exploding gradient. The loss is finite throughout and the rate is tiny."""
import torch, torch.nn as nn

class ClampSTE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x.clamp(-1, 1)
    @staticmethod
    def backward(ctx, grad): return grad
class Cell(nn.Module):
    def __init__(s): super().__init__(); s.W = nn.Parameter(torch.eye(6) * 1.6 + 0.05); s.U = nn.Parameter(torch.randn(2, 6) * 0.3)
    def forward(s, h, x): return ClampSTE.apply(h @ s.W + x @ s.U)
class RNN(nn.Module):
    def __init__(s): super().__init__(); s.cell = Cell(); s.head = nn.Linear(6, 1)
    def forward(s, x):
        h = x.new_zeros(x.shape[0], 6)
        for t in range(x.shape[1]): h = s.cell(h, x[:, t])
        return s.head(h)

def build():
    torch.manual_seed(0); model = RNN(); opt = torch.optim.Adam(model.parameters(), lr=1e-6); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(3, T, 2, generator=g), torch.randn(3, 1, generator=g)) for T in (4, 8, 16, 32, 64, 256)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="exploding_gradient", module="cell", phase="backward", op="aten.mm", first_bad_step=5,
                           loss_finite_at_first_bad_step=True))
