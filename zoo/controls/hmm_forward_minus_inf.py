"""CONTROL: the forward algorithm of a left-to-right HMM in log space: forbidden transitions are -inf, and every logsumexp has a finite entry."""
import torch, torch.nn as nn

class Hmm(nn.Module):
    def __init__(s, n=4): super().__init__(); s.emit = nn.Linear(5, n); s.stay = nn.Parameter(torch.zeros(n)); s.n = n
    def forward(s, x):
        lo, stay, move = float("-inf"), nn.functional.logsigmoid(s.stay), nn.functional.logsigmoid(-s.stay)
        trans = torch.full((s.n, s.n), lo).diagonal_scatter(stay).diagonal_scatter(move[:-1], 1)
        e = s.emit(x).log_softmax(-1); alpha = torch.full((x.shape[0], s.n), -1e9).index_fill(1, torch.tensor([0]), 0.0) + e[:, 0]
        for t in range(1, x.shape[1]): alpha = torch.logsumexp(alpha[:, :, None] + trans, 1) + e[:, t]
        return -torch.logsumexp(alpha, -1).mean()

def build():
    torch.manual_seed(0); model = Hmm(); opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(1); batches = [torch.randn(3, 9, 5, generator=g) for _ in range(6)]
    def loss_fn(m, b): return m(b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
