"""A converted checkpoint of the optimizer has the two moments of Adam exchanged; the negative second moment gives sqrt(-x).
Written for this.
True cause: the restored state of the optimizer is corrupt."""
import copy
import torch
from torch import nn


def exchange(state):
    for s in state["state"].values():
        s["exp_avg"], s["exp_avg_sq"] = s["exp_avg_sq"], s["exp_avg"]
    return state


def build():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(5, 10), nn.Tanh(), nn.Linear(10, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(2)
    data = [(x, x.sum(1, keepdim=True)) for x in torch.randn(6, 12, 5, generator=g)]

    def stream():
        for i, item in enumerate(data):
            if i == 3:
                opt.load_state_dict(exchange(copy.deepcopy(opt.state_dict())))
            yield item

    return dict(model=net, optimizer=opt, batches=stream(), loss_fn=lambda m, b: (m(b[0]) - b[1]).square().mean(), steps=6, autocast_dtype=None,
                truth=dict(cause="corrupt_optimizer_state", module="optimizer", phase="optimizer", op="aten.sqrt", first_bad_step=3, loss_finite_at_first_bad_step=True, grads_finite=True))
