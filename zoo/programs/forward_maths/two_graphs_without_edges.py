"""Two of thirty graphs have no edge: their mean degree is 0 and the division is 0/0. Each of the two fails alone.
True cause: division by zero; no message may say that no part of the batch fails alone."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Linear(6, 4); opt = torch.optim.SGD(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(30, 6, generator=g), torch.randint(1, 5, (30,), generator=g).float()) for _ in range(4)]
    batches[2][1][[4, 21]] = 0.0
    def loss_fn(m, b):
        x, degree = b; return (m(x) / degree.sqrt()[:, None]).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="forward", op="aten.div", first_bad_step=2,
                           never_said=["no part of the batch fails alone", "no rule knows"]))
