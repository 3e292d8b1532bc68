"""MAML with torch.func: the inner step size is exp(log_lr[task]) and task 3's log_lr is 120 in the pretrained table: exp overflows (fp32 limit 88.7).
The outer rate (0.1) is innocent; the inner one is not the optimizer's."""
import torch, torch.nn as nn
from torch.func import functional_call, grad

class Meta(nn.Module):
    def __init__(s): super().__init__(); s.net = nn.Linear(4, 1); s.log_lr = nn.Embedding(5, 1)
    def forward(s, x): return s.net(x)

def build():
    torch.manual_seed(0); model = Meta(); opt = torch.optim.SGD(model.parameters(), lr=0.1); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model.log_lr.weight.fill_(-3.0); model.log_lr.weight[3] = 120.0
    batches = [dict(xs=torch.randn(6, 4, generator=g), ys=torch.randn(6, 1, generator=g), xq=torch.randn(6, 4, generator=g), yq=torch.randn(6, 1, generator=g),
                    task=torch.tensor([0, 4, 1, 3, 2][i])) for i in range(5)]
    def loss_fn(m, b):
        p = dict(m.net.named_parameters())
        inner = lambda q: nn.functional.mse_loss(functional_call(m.net, q, (b["xs"],)), b["ys"])
        d = grad(inner)(p)
        rate = torch.exp(m.log_lr(b["task"]))
        fast = {k: p[k] - rate * d[k] for k in p}
        return nn.functional.mse_loss(functional_call(m.net, fast, (b["xq"],)), b["yq"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="loss", where="loss_fn", phase="forward", op="aten.exp", first_bad_step=3,
                           **{"not": ["lr_too_high", "resume_lr_jump", "bad_input_data", "exploding_gradient"]}))
