"""Momentum teacher style: before the labelled pass the unlabelled images go through the network without gradient, and one of them is Inf.
BatchNorm's running mean is Inf from then on; in train mode the loss does not show it.
True cause: bad unlabelled data, and with it the buffers."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)); opt = torch.optim.SGD(model.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(1)
    batches = [dict(x=torch.randn(8, 5, generator=g), y=torch.randint(0, 2, (8,), generator=g), unlabelled=torch.randn(8, 5, generator=g)) for _ in range(6)]
    batches[3]["unlabelled"][2, 1] = float("inf")
    def loss_fn(m, b):
        with torch.no_grad(): m(b["unlabelled"])
        return nn.functional.cross_entropy(m(b["x"]), b["y"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="bad_input_data", also=["bn_buffers_poisoned"], module="data", phase="data", op="data", first_bad_step=3,
                           never_said=["replace the device"]))
