"""Matrix factorisation of ratings, plain SGD with a rate found for the mean loss but used with the sum: the factors oscillate and grow doubly fast.
True cause: learning rate beyond stability; a tenth of it trains well. Data and initial values are ordinary."""
import torch, torch.nn as nn

class Factors(nn.Module):
    def __init__(s, n, k=4): super().__init__(); s.table = nn.Embedding(n, k); nn.init.normal_(s.table.weight, std=0.5)
    def forward(s, i): return s.table(i)
class MF(nn.Module):
    def __init__(s): super().__init__(); s.user = Factors(6); s.item = Factors(8); s.mu = nn.Parameter(torch.tensor(3.0))
    def forward(s, u, i): return (s.user(u) * s.item(i)).sum(-1) + s.mu

def build():
    torch.manual_seed(0); model = MF(); opt = torch.optim.SGD(model.parameters(), lr=0.15); g = torch.Generator().manual_seed(1)
    batches = [(torch.randint(0, 6, (48,), generator=g), torch.randint(0, 8, (48,), generator=g), torch.randint(1, 6, (48,), generator=g).float()) for _ in range(12)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0], b[1]), b[2], reduction="sum")
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=9, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="loss", phase="forward", op="aten.mul", first_bad_step=5))
