"""CONTROL: beam scores that start at -inf, an early-stopping minimum that starts at inf (a buffer), topk over -inf, a count of 0/0 logged as NaN: all for people's eyes only."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(7, 6); s.head = nn.Linear(6, 7); s.register_buffer("best", torch.tensor(float("inf"))); s.log = []
    def forward(s, x): return s.head(s.emb(x))
    @torch.no_grad()
    def beam(s, start):
        score = torch.full((1, 3), float("-inf")); score[0, 0] = 0.0; tok = start.expand(3)
        for _ in range(3):
            lp = s(tok).log_softmax(-1); lp[:, 0] = float("-inf")                    # token 0 is forbidden
            score, k = (score[0][:, None] + lp).flatten().topk(3); score = score[None]; tok = k % 7
        return score
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1)
    batches = [torch.randint(1, 7, (4, 5), generator=g) for _ in range(8)]
    def loss_fn(m, b):
        l = nn.functional.cross_entropy(m(b[:, :-1]).flatten(0, 1), b[:, 1:].flatten()); s = m.beam(b[0, :1])
        m.best.copy_(torch.minimum(m.best, l.detach())) if len(m.log) >= 4 else None
        m.log.append(float((s > 0).sum() / torch.zeros(()))); return l
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
