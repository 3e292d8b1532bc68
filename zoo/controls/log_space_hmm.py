"""CONTROL: the forward algorithm in log space. The start vector is -inf for all states but the first and the transition matrix forbids
going back (-inf), as in every left-to-right HMM; logsumexp always sees a finite entry on the paths that count."""
import torch
import torch.nn as nn


class LeftToRight(nn.Module):
    def __init__(self, states=4, symbols=6):
        super().__init__()
        self.stay = nn.Parameter(torch.zeros(states))
        self.emit = nn.Parameter(torch.randn(states, symbols) * 0.5)
        start = torch.full((states,), float("-inf"))
        start[0] = 0.0
        self.register_buffer("start", start)

    def forward(self, seq):
        emit = self.emit.log_softmax(-1)
        stay, move = nn.functional.logsigmoid(self.stay), nn.functional.logsigmoid(-self.stay)
        alpha = self.start[None] + emit[:, seq[:, 0]].t()
        for t in range(1, seq.shape[1]):
            moved = torch.cat([torch.full((len(seq), 1), float("-inf")), alpha[:, :-1] + move[:-1]], 1)
            reach = min(t + 1, alpha.shape[1])
            step = torch.logsumexp(torch.stack([alpha + stay, moved])[..., :reach], 0)
            alpha = torch.cat([step, torch.full((len(seq), alpha.shape[1] - reach), float("-inf"))], 1)
            alpha = alpha + emit[:, seq[:, t]].t()
        return torch.logsumexp(alpha, -1)


def build():
    torch.manual_seed(0)
    model = LeftToRight()
    opt = torch.optim.Adam(model.parameters(), lr=0.02)
    g = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, 6, (5, 12), generator=g) for _ in range(8)]

    def loss_fn(m, seq):
        return -m(seq).mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
