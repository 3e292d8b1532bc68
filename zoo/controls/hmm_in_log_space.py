"""CONTROL: the forward algorithm of a left-to-right HMM in log space: impossible transitions are -inf, logsumexp runs over rows with at least one finite entry, and
states that cannot be reached yet keep -inf. Loss and gradients are finite."""
import torch, torch.nn as nn

class HMM(nn.Module):
    def __init__(s, n=4):
        super().__init__(); s.emit = nn.Linear(3, n); s.stay = nn.Parameter(torch.zeros(n, n)); s.register_buffer("allowed", torch.ones(n, n).triu().bool() & torch.ones(n, n).tril(1).bool())
    def forward(s, x):
        trans = s.stay.masked_fill(~s.allowed, float("-inf")).log_softmax(-1); e = s.emit(x).log_softmax(-1)
        alpha = torch.full((4,), float("-inf")); alpha[0] = 0.0; alpha = alpha + e[0]
        for t in range(1, x.shape[0]):
            rows = alpha[:, None] + trans; live = rows.amax(0) > float("-inf")
            alpha = torch.full((4,), float("-inf")).index_put((live.nonzero()[:, 0],), rows[:, live].logsumexp(0) + e[t][live])
        return -alpha[-1]

def build():
    torch.manual_seed(0); model = nn.Sequential(); model.hmm = HMM(); opt = torch.optim.RAdam(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(1); batches = [torch.randn(n, 3, generator=g) for n in (6, 5, 8, 4, 7, 6)]
    def loss_fn(m, x): return m.hmm(x)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
