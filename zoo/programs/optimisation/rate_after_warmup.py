"""AdamW behaves well during a linear warm-up; when the warm-up ends the base rate, a hundred times too high, is used at once.
After https://github.com/state-spaces/mamba/pull/962 (unstable at higher learning rates: loss explosion).
True cause: the rate after the warm-up is too high."""
import torch, torch.nn as nn
from torch.optim.lr_scheduler import LinearLR, ConstantLR, SequentialLR

class Mixer(nn.Module):
    def __init__(self, tokens=8, d=32, depth=6):
        super().__init__()
        self.inp = nn.Linear(4, d)
        self.token = nn.ModuleList([nn.Linear(tokens, tokens) for _ in range(depth)])
        self.channel = nn.ModuleList([nn.Linear(d, d) for _ in range(depth)])
        self.out = nn.Linear(d, 1)
    def forward(self, x):
        x = self.inp(x)
        for t, c in zip(self.token, self.channel):
            x = x + t(x.transpose(1, 2)).transpose(1, 2)
            x = x + torch.nn.functional.gelu(c(x))
        return self.out(x.mean(1)).squeeze(1)

def build():
    torch.manual_seed(10)
    m = Mixer()
    opt = torch.optim.AdamW(m.parameters(), lr=10.0, weight_decay=0.01)
    s = SequentialLR(opt, [LinearLR(opt, start_factor=1e-5, end_factor=1e-4, total_iters=8), ConstantLR(opt, factor=1.0)], milestones=[8])
    opt.register_step_post_hook(lambda *_: s.step())
    g = torch.Generator().manual_seed(2)
    xs = [torch.randn(16, 8, 4, generator=g) for _ in range(6)]
    pairs = [(x, x.mean((1, 2)) * 3) for x in xs]
    def objective(m, pair):
        pred = m(pair[0])
        return nn.functional.mse_loss(pred, pair[1])
    return dict(model=m, optimizer=opt, batches=pairs, loss_fn=objective, steps=16, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="loss", phase="forward", op="aten.mse_loss", first_bad_step=9, line="mse_loss(pred, pair[1])"))
