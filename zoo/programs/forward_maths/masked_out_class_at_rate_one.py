"""Probabilities times a mask of what is allowed, then their logarithm: at step 20 the true class is masked out.
True cause: log of zero. SGD's rate of 1 looks high and is harmless: a hundredth of it fails at the same step."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(8); net = nn.Linear(12, 6); opt = torch.optim.SGD(net.parameters(), lr=1.0)
    g = torch.Generator().manual_seed(9); data = []
    for i in range(24):
        y = torch.randint(0, 6, (8,), generator=g)
        allowed = (torch.rand(8, 6, generator=g) < 0.7).float(); allowed[torch.arange(8), y] = 1
        if i == 20: allowed[3, y[3]] = 0
        data.append((torch.randn(8, 12, generator=g), y, allowed))
    def loss_fn(net, b):
        x, y, allowed = b
        p = net(x).softmax(-1) * allowed
        return -torch.log(p.gather(1, y[:, None])).mean()
    return dict(model=net, optimizer=opt, batches=data, loss_fn=loss_fn, steps=24, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="loss", phase="forward", op="aten.log", first_bad_step=20, line="torch.log", **{"not": ["lr_too_high"]}))
