"""Three logarithms in one loss, two of them at zero in the failed batch: a floor under one of them leaves the step as bad as before.
True cause: log of zero; a remedy that repairs one of them must not be called verified."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Linear(5, 3); opt = torch.optim.SGD(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 5, generator=g), torch.rand(6, 3, generator=g) + 0.1) for _ in range(4)]; batches[2][0].mul_(900)
    def loss_fn(m, b):
        p = m(b[0]).softmax(-1); q = b[1] / b[1].sum(-1, keepdim=True)
        first = (q * p.log()).sum(-1)
        second = ((p + q) / 2).log().mean(-1)
        third = (p.amin(-1)).log()
        return -(first + second + third).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="loss", phase="forward", op="aten.log", first_bad_step=2, remedy="partial"))
