"""The decay of an exponential moving average is given as 99.9 (percent) and used as a factor: avg = 99.9 avg - 98.9 w. The copy grows a hundredfold a step.
True cause: the averaged copy is poisoned; the model trains well, and with 0.999 the copy does too."""
import copy, torch, torch.nn as nn

class Averager:
    def __init__(s, net, ema, decay): s.net, s.ema, s.decay = net, ema, decay
    @torch.no_grad()
    def __call__(s, optimizer, args, kwargs):
        for a, p in zip(s.ema.parameters(), s.net.parameters()): a.mul_(s.decay).add_(p, alpha=1 - s.decay)

def build():
    torch.manual_seed(0); model = nn.ModuleDict(dict(student=nn.Sequential(nn.Linear(6, 10), nn.CELU(), nn.Linear(10, 2))))
    model["teacher"] = copy.deepcopy(model["student"]).requires_grad_(False); opt = torch.optim.NAdam(model["student"].parameters(), lr=2e-3)
    opt.register_step_post_hook(Averager(model["student"], model["teacher"], decay=99.9)); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 6, generator=g), torch.randint(0, 2, (6,), generator=g)) for _ in range(24)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m["student"](b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=23, autocast_dtype=None,
                truth=dict(cause="ema_poisoned", module="optimizer", phase="optimizer", op="aten.mul_", first_bad_step=20,
                           loss_finite_at_first_bad_step=True, grads_finite=True, poisoned_state=["teacher.0.weight"]))
