"""A run is pre-empted after step 3 and resumed in the same process. The saved optimizer state comes from the eight-node job, whose
rate was scaled by 4,096; load_state_dict puts that rate into the param groups. Loss was falling before; it explodes right after.
True cause: the restored rate. With the rate before the resume the run stays finite."""
import copy
import torch
import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 32), nn.Linear(32, 32), nn.Linear(32, 1)])

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.nn.functional.leaky_relu(layer(x))
        return self.layers[-1](x).squeeze(-1)


class Preemption:
    """Simulated node failure: restores the optimizer from the last snapshot after the given number of updates."""

    def __init__(self, after, snapshot):
        self.after, self.snapshot, self.done = after, snapshot, 0

    def __call__(self, optimizer, *args):
        self.done += 1
        if self.done == self.after:
            optimizer.load_state_dict(self.snapshot)


def build():
    torch.manual_seed(0)
    model = Net()
    opt = torch.optim.SGD(model.parameters(), lr=0.02)
    snapshot = copy.deepcopy(opt.state_dict())
    snapshot["param_groups"][0]["lr"] = 0.02 * 4096
    opt.register_step_post_hook(Preemption(4, snapshot))
    g = torch.Generator().manual_seed(1)
    w = torch.randn(8, generator=g)
    batches = []
    for _ in range(12):
        x = torch.randn(32, 8, generator=g)
        batches.append((x, x @ w))

    def loss_fn(m, b):
        return (m(b[0]) - b[1]).pow(2).mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="resume_lr_jump", module="loss", phase="forward", op="aten.pow", first_bad_step=6,
                           also=dict(cause=["lr_too_high"])))
