"""CLIP whose log temperature was configured as 100 instead of log(100)."""
import torch, torch.nn as nn, torch.nn.functional as F

class Head(nn.Module):
    def __init__(s): super().__init__(); s.logit_scale = nn.Parameter(torch.tensor(100.0))
    def forward(s, a, b):
        a = F.normalize(a, dim=-1); b = F.normalize(b, dim=-1)
        return s.logit_scale.exp() * a @ b.t()
class CLIP(nn.Module):
    def __init__(s): super().__init__(); s.image = nn.Linear(12, 8); s.text = nn.Linear(10, 8); s.head = Head()
    def forward(s, image, text): return s.head(s.image(image), s.text(text))
def build():
    torch.manual_seed(0); model = CLIP(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 12, generator=g), torch.randn(6, 10, generator=g)) for _ in range(2)]
    def loss_fn(m, b):
        logits = m(*b); target = torch.arange(len(logits))
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="head", phase="forward", op="aten.exp", first_bad_step=0, line="s.logit_scale.exp()"))
