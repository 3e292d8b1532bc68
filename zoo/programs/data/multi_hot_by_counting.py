"""Multi-label targets are built by scatter_add of ones, so a tag that occurs several times gets 3 or 4 in place of 1; the BCE has no lower bound there.
True cause: BCE targets above 1. The loss falls below 0 and on and on, until a layer overflows; with targets clamped to 1 the same rate is fine."""
import torch, torch.nn as nn

class Tags(nn.Module):
    def __init__(s):
        super().__init__(); s.emb = nn.Embedding(30, 12); s.mix = nn.Linear(12, 24); s.act = nn.LeakyReLU(0.2); s.mid = nn.Linear(24, 24); s.out = nn.Linear(24, 6)
    def forward(s, ids): return s.out(s.act(s.mid(s.act(s.mix(s.emb(ids).sum(1))))))

def build():
    torch.manual_seed(0); model = Tags(); opt = torch.optim.SGD(model.parameters(), lr=0.06, momentum=0.8, nesterov=True); g = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(11):
        tags = torch.randint(0, 6, (12, 14), generator=g) % torch.randint(1, 7, (12, 1), generator=g)
        batches.append((torch.randint(0, 30, (12, 5), generator=g), torch.zeros(12, 6).scatter_add_(1, tags, torch.ones(12, 14))))
    def loss_fn(m, b):
        weight = torch.ones(6); return nn.functional.binary_cross_entropy_with_logits(m(b[0]), b[1], pos_weight=weight)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=11, autocast_dtype=None,
                truth=dict(cause="label_out_of_range", module="out", phase="forward", op="aten.addmm", first_bad_step=9))
