"""A density model of sensor readings with a deviation of 1e-4. The negative log-likelihood is a density's, so it passes zero and goes
on falling to about -30, while gradients grow as the learned scale shrinks. The gradient norm is clipped. A falling negative loss is
often a label out of range; here it is a good fit. Healthy."""
import math
import torch
from torch import nn


class AffineFlow(nn.Module):
    def __init__(self, d=4):
        super().__init__()
        self.log_scale = nn.Parameter(torch.zeros(d))

    def forward(self, x):
        z = x * torch.exp(-self.log_scale)
        return -0.5 * z.pow(2).sum(1) - self.log_scale.sum() - 0.5 * x.shape[1] * math.log(2 * math.pi)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.flow = AffineFlow()


def loss_fn(model, x):
    return -model.flow(x).mean()


def build():
    torch.manual_seed(67)
    model = Model()
    batches = [torch.randn(64, 4) * 1e-4 for _ in range(5)]
    opt = torch.optim.Adam(model.parameters(), lr=0.3)
    opt.register_step_pre_hook(lambda o, a, k: torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0) and None)
    truth = dict(cause="benign", first_bad_step=None, phase=None, module=None, op=None,
                 why="the log-likelihood of a narrow density is positive; the scale converges to the deviation of the data and the loss settles",
                 **{"not": ["label_out_of_range", "exploding_gradient"]})
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=40, autocast_dtype=None, truth=truth)
