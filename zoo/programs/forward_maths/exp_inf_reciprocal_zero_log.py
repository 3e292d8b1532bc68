"""Heteroscedastic head, gradient-checkpointed: var = exp(lv) overflows for sensor 4 (lv about 200), 1/var is 0, log(prec) is -inf. The inf is erased by the
division and comes back at the log: a "safe log" leaves the gradients NaN (0 * inf). The origin is exp."""
import torch, torch.nn as nn
from torch.utils.checkpoint import checkpoint

class NLL(nn.Module):
    def __init__(s): super().__init__(); s.lv = nn.Embedding(5, 1)
    def forward(s, d, k):
        prec = 1.0 / torch.exp(s.lv(k))
        return 0.5 * (prec * d * d - torch.log(prec))
class Net(nn.Module):
    def __init__(s): super().__init__(); s.reg = nn.Linear(3, 1); s.nll = NLL()
    def forward(s, x, k, y): return checkpoint(s.nll, s.reg(x) - y, k, use_reentrant=False)

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model.nll.lv.weight.zero_(); model.nll.lv.weight[4] = 200.0
    batches = [(torch.randn(6, 3, generator=g), torch.randint(0, 4, (6,), generator=g), torch.randn(6, 1, generator=g)) for _ in range(5)]; batches[2][1][5] = 4
    def loss_fn(m, b): return m(*b).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="nll", phase="forward", op="aten.exp", first_bad_step=2,
                           **{"not": ["log_of_zero", "division_by_zero", "zero_times_inf", "bad_input_data", "lr_too_high"]}))
