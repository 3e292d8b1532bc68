"""A flat-bottom restraint has an upper bound of +inf for some pairs; (value - inf)^2 is dropped by where in the forward pass and comes back as 0 * inf.
After https://github.com/bytedance/Protenix/issues/336 (the forward energy is finite, autograd returns NaN).
True cause: the branch that where does not select."""
import torch
from torch import nn


def flat_bottom(value, k, lower, upper):
    below = k * (value - lower) ** 2
    above = k * (value - upper) ** 2
    energy = torch.where(value < lower, below, torch.zeros_like(value))
    return torch.where(value > upper, above, energy)


def build():
    torch.manual_seed(0)
    net = nn.Linear(6, 5)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(1)
    inf = float("inf")
    uppers = [torch.full((5,), 4.0), torch.full((5,), 3.0), torch.tensor([3.0, inf, 3.0, inf, 3.0]), torch.full((5,), 4.0)]
    batches = [{"z": torch.randn(3, 6, generator=g), "upper": u} for u in uppers]

    def guidance(m, b):
        dist = nn.functional.softplus(m(b["z"]))
        return flat_bottom(dist, 0.5, torch.ones(5), b["upper"]).sum(1).mean()

    return dict(model=net, optimizer=opt, batches=batches, loss_fn=guidance, steps=4, autocast_dtype=None,
                truth=dict(cause="where_unselected_branch", also=("bad_input_data",), also_phase=("data",), also_module=("data",), also_op=("aten.sub",), module="loss", phase="backward", disputed="the bound of +inf is in the batch, by design; who takes it for bad data repairs the run as well", op="aten.mul", first_bad_step=2, loss_finite_at_first_bad_step=True, line="above = k *"))
