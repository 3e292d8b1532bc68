"""CONTROL: CRF forward algorithm with -inf for forbidden transitions and start states; every state has one legal predecessor."""
import torch, torch.nn as nn, torch.nn.functional as F
class CRF(nn.Module):
    def __init__(s):
        super().__init__(); s.emit = nn.Linear(5, 3); s.trans = nn.Parameter(torch.zeros(3, 3)); ban = torch.zeros(3, 3, dtype=torch.bool); ban[0, 2] = ban[2, 0] = True; s.register_buffer("ban", ban)
    def forward(s, x, y):
        e = s.emit(x); tr = s.trans.masked_fill(s.ban, float("-inf")); a = e[:, 0]; sc = e[:, 0].gather(1, y[:, :1]).squeeze(1)
        for t in range(1, x.shape[1]):
            a = torch.logsumexp(a[:, :, None] + tr[None], 1) + e[:, t]
            sc = sc + tr[y[:, t - 1], y[:, t]] + e[:, t].gather(1, y[:, t:t + 1]).squeeze(1)
        return (torch.logcumsumexp(a, 1)[:, -1] - sc).mean()
def build(fix=None):
    torch.manual_seed(0); model = CRF(); opt = torch.optim.Adam(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, 6, 5, generator=g), torch.tensor([[0, 1, 2, 2, 1, 0]] * 4)) for _ in range(6)]
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: m(*b), steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None, loss_finite_at_first_bad_step=None, also=[], why="-inf is legal here"))
