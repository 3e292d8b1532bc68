"""Cox partial likelihood on mini-batches: the mean of the log-likelihood over the patients that had the event. All patients of batch 4 are
censored, the selection is empty, and the mean of nothing is NaN.
True cause: mean over zero events."""
import torch
import torch.nn as nn


class Risk(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(7, 16), nn.SELU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.net(x).squeeze(-1)


def cox(risk, time, event):
    order = torch.argsort(time, descending=True)
    risk, event = risk[order], event[order]
    log_lik = risk - torch.logcumsumexp(risk, 0)
    return -log_lik[event].mean()


def build():
    torch.manual_seed(0)
    model = Risk()
    opt = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = []
    for i in range(6):
        event = torch.rand(10, generator=g) < 0.5
        event[0] = True
        if i == 4:
            event[:] = False
        batches.append((torch.randn(10, 7, generator=g), torch.rand(10, generator=g) * 60, event))

    def loss_fn(m, b):
        return cox(m(b[0]), b[1], b[2])

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="empty_reduction", module="loss", phase="forward", op="aten.mean", first_bad_step=4, grads_finite=True))
