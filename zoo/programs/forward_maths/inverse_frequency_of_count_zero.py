"""Sample weights 1/frequency are computed in the loss function from finite counts, without gradient; a count is 0. The batch itself is finite.
True cause: division by zero in the program, not bad data."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(5, 10), nn.GELU(), nn.Linear(10, 1)); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 5, generator=g), torch.randn(6, generator=g), torch.randint(1, 9, (6,), generator=g).float()) for _ in range(6)]
    batches[3][2][1] = 0.0
    def loss_fn(m, b):
        x, y, counts = b
        weight = 1.0 / counts
        return (weight * (m(x).squeeze(-1) - y).square()).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="forward", op="aten.reciprocal", first_bad_step=3,
                           never_said=["the batch is non-finite", "mask that selects nothing"]))
