"""log(margin) where the margin of a hard negative is below 0: NaN from a domain error, no zero anywhere.
True cause: logarithm of a negative number."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Linear(5, 4); opt = torch.optim.SGD(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 5, generator=g), torch.full((6,), 3.0)) for _ in range(5)]
    batches[3][1][2] = -2.0
    def loss_fn(m, b):
        z = m(b[0]).square().mean(-1); return -torch.log(b[1] + z.tanh()).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="domain_error", module="loss", phase="forward", op="aten.log", first_bad_step=3, never_said=["logarithm of zero"]))
