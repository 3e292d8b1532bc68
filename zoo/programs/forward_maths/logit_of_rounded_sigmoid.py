"""A calibration layer takes torch.logit of a sigmoid: above about 17 the fp32 sigmoid is exactly 1, and logit(1) is log(1 / 0).
True cause: the logarithm of 1 - p at p = 1 (a confident sample in batch 2); logit with an eps is finite."""
import torch, torch.nn as nn

class Calibrate(nn.Module):
    def __init__(s): super().__init__(); s.slope = nn.Parameter(torch.ones(3)); s.shift = nn.Parameter(torch.zeros(3))
    def forward(s, p): return torch.logit(p) * s.slope + s.shift
class Net(nn.Module):
    def __init__(s): super().__init__(); s.score = nn.Linear(5, 3); s.calibrate = Calibrate()
    def forward(s, x): return s.calibrate(s.score(x).sigmoid())

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Rprop(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 5, generator=g), torch.rand(6, 3, generator=g)) for _ in range(5)]
    batches[2][0][1] = 60.0 * model.score.weight[1].detach().sign()
    def loss_fn(m, b): return nn.functional.multilabel_soft_margin_loss(m(b[0]), (b[1] > 0.5).float())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="calibrate", phase="forward", op="aten.logit", first_bad_step=2))
