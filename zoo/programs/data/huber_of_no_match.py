"""A detector sums three terms; the box term is F.huber_loss of the matched queries, and in one batch the matcher finds none: the mean of nothing.
True cause: an empty reduction inside the criterion; the other two terms are in order."""
import torch, torch.nn as nn

class Criterion(nn.Module):
    def forward(s, box, score, side, tgt, matched, y):
        return (nn.functional.huber_loss(box[matched], tgt[matched]) + nn.functional.binary_cross_entropy_with_logits(score, matched.float())
                + 0.1 * nn.functional.cross_entropy(side, y))
class Detector(nn.Module):
    def __init__(s): super().__init__(); s.trunk = nn.Linear(8, 16); s.box = nn.Linear(16, 4); s.score = nn.Linear(16, 1); s.side = nn.Linear(16, 3); s.criterion = Criterion()
    def forward(s, x, tgt, matched, y):
        h = nn.functional.hardswish(s.trunk(x)); return s.criterion(s.box(h), s.score(h).squeeze(-1), s.side(h), tgt, matched, y)

def build():
    torch.manual_seed(0); model = Detector(); opt = torch.optim.Adamax(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(5):
        matched = torch.rand(10, generator=g) > (2.0 if i == 2 else 0.5)
        batches.append((torch.randn(10, 8, generator=g), torch.rand(10, 4, generator=g), matched, torch.randint(0, 3, (10,), generator=g)))
    def loss_fn(m, b): return m(*b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="empty_reduction", module="criterion", phase="forward", op="aten.huber_loss", first_bad_step=2, grads_finite=True))
