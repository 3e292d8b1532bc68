"""CLIP: the logit scale is learned in log space and starts at 100 instead of log(100): exp(100) overflows in the first step.
True cause: exp overflow."""
import torch, torch.nn as nn

class CLIP(nn.Module):
    def __init__(s): super().__init__(); s.i = nn.Linear(6, 8); s.t = nn.Linear(5, 8); s.scale = nn.Parameter(torch.tensor(100.0))
    def forward(s, a, b):
        a = nn.functional.normalize(s.i(a), dim=-1); b = nn.functional.normalize(s.t(b), dim=-1)
        return s.scale.exp() * a @ b.T
def build():
    torch.manual_seed(0); model = CLIP(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 6, generator=g), torch.randn(6, 5, generator=g)) for _ in range(3)]
    def loss_fn(m, b): z = m(*b); y = torch.arange(6); return nn.functional.cross_entropy(z, y) + nn.functional.cross_entropy(z.T, y)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="exp_overflow", also=["bad_initialisation"], module="loss", phase="forward", op="aten.exp", first_bad_step=0))
