"""A left-to-right HMM acoustic model trained with its own forward algorithm in the log domain. Impossible states and transitions have
the log-probability -Inf; every logsumexp has at least one finite term, because states that cannot be reached yet get a finite floor by
the double where before logsumexp. -Inf is everywhere, the loss and all gradients are finite. Healthy."""
import torch
from torch import nn


class HMM(nn.Module):
    def __init__(self, states=5):
        super().__init__()
        self.emit = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, states))
        self.stay = nn.Parameter(torch.zeros(states))

    def forward(self, x):
        emission = self.emit(x).log_softmax(-1)
        stay, move = nn.functional.logsigmoid(self.stay), nn.functional.logsigmoid(-self.stay)
        n = len(stay)
        trans = torch.full((n, n), float("-inf"))
        trans = trans + torch.zeros(n, n)
        eye = torch.eye(n, dtype=torch.bool)
        trans = torch.where(eye, stay[:, None].expand(n, n), trans)
        trans = torch.where(eye.roll(1, 1).triu(1), move[:, None].expand(n, n), trans)
        alpha = torch.full((len(x), n), float("-inf"))
        alpha[:, 0] = emission[:, 0, 0].detach()
        for t in range(1, x.shape[1]):
            score = alpha[:, :, None] + trans
            reachable = (score > float("-inf")).any(1, keepdim=True)
            safe = torch.where(reachable, score, torch.zeros_like(score)).logsumexp(1)
            alpha = torch.where(reachable.squeeze(1), safe + emission[:, t], torch.full_like(safe, float("-inf")))
        return alpha[:, -1]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.hmm = HMM()


def loss_fn(model, x):
    return -model.hmm(x).mean()


def build():
    torch.manual_seed(62)
    model = Model()
    batches = [torch.randn(8, 12, 6) for _ in range(4)]
    truth = dict(cause="benign", first_bad_step=None, phase=None, module=None, op=None,
                 why="-Inf means impossible and is only ever added or compared; no row of a logsumexp is -Inf throughout")
    return dict(model=model, optimizer=torch.optim.Adam(model.parameters(), lr=1e-2), batches=batches, loss_fn=loss_fn, steps=8,
                autocast_dtype=None, truth=truth)
