"""Policy with invalid-action masking (-inf logits, innocent in every batch) and an entropy bonus written p * log p, switched on
from batch 3 (the entropy coefficient's warm-up): 0 * -Inf = NaN."""
import torch, torch.nn as nn
from dataclasses import dataclass
@dataclass
class Rollout:
    obs: torch.Tensor; legal: torch.Tensor; act: torch.Tensor; adv: torch.Tensor; ent_on: bool
class Entropy(nn.Module):
    def forward(self, logp): return -(logp.exp() * logp).sum(-1)
class Policy(nn.Module):
    def __init__(self): super().__init__(); self.trunk = nn.Linear(5, 16); self.logits = nn.Linear(16, 6); self.entropy = Entropy()
    def forward(self, r):
        z = self.logits(self.trunk(r.obs).relu()).masked_fill(~r.legal, float("-inf")); return z.log_softmax(-1)
def build():
    torch.manual_seed(0); model = Policy(); opt = torch.optim.RMSprop(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); bs = []
    for i in range(6):
        legal = torch.rand(10, 6, generator=g) > 0.4; legal[:, 2] = True; legal[:, 5] = False
        bs.append(Rollout(torch.randn(10, 5, generator=g), legal, torch.full((10,), 2), torch.randn(10, generator=g), i >= 3))
    def loss_fn(m, r):
        lp = m(r); loss = -(lp.gather(1, r.act[:, None])[:, 0] * r.adv).mean()
        return loss - 0.01 * m.entropy(lp).mean() if r.ent_on else loss
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="zero_times_inf", module="entropy", phase="forward", op="aten.mul", first_bad_step=3,
                           loss_finite_at_first_bad_step=False, why="p is exactly 0 where the mask made log p -Inf."))
