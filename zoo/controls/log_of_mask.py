"""CONTROL: log of a 0/1 mask is added to the logits: log(0) = -inf is meant, and softmax and logsumexp over rows with at least one finite entry
are finite, as are their gradients."""
import torch, torch.nn as nn

class Pointer(nn.Module):
    def __init__(s): super().__init__(); s.score = nn.Linear(6, 1)
    def forward(s, x, mask): return s.score(x).squeeze(-1) + torch.log(mask)

def build():
    torch.manual_seed(0); model = Pointer(); opt = torch.optim.Adam(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1); batches = []
    for _ in range(6):
        mask = (torch.rand(4, 7, generator=g) < 0.5).float(); mask[:, 3] = 1.0
        batches.append((torch.randn(4, 7, 6, generator=g), mask))
    def loss_fn(m, b):
        logits = m(*b); pooled = (logits.softmax(-1)[..., None] * b[0]).sum(1)
        return (logits.logsumexp(-1) - logits[:, 3]).mean() + pooled.square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
