"""A span extractor turns pair probabilities into the chance that nothing covers a word: sum of log1p(-p), clamped at 1 - 1e-6. The probabilities are bfloat16,
in which the bound is exactly 1. The loss hides it, since 1 - exp(-inf) is 1.
After https://github.com/fastino-ai/GLiNER2/pull/155 (the epsilon is not representable next to 1.0; forward finite, backward NaN).
True cause: a bound that rounds to one in bfloat16."""
import torch
from torch import nn


class SpanScorer(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.start, self.end = nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, words):
        return torch.sigmoid((self.start(words) @ self.end(words).t()).bfloat16())


class Consistency(nn.Module):
    def forward(self, probabilities, first, last, words):
        log_survival = torch.log1p(-probabilities.clamp(max=1.0 - 1e-6))
        covered = log_survival.new_zeros(words)
        pairs = log_survival[first, last]
        covered = covered.scatter_add(0, first, pairs).scatter_add(0, last, pairs)
        return 1 - covered.exp()


class Extractor(nn.Module):
    def __init__(self, vocab=30):
        super().__init__()
        self.emb = nn.Embedding(vocab, 16)
        self.scorer, self.consistency = SpanScorer(), Consistency()

    def forward(self, ids, first, last):
        marginal = self.consistency(self.scorer(self.emb(ids)), first, last, len(ids))
        return marginal.float()


def build():
    torch.manual_seed(0)
    model = Extractor()
    with torch.no_grad():
        model.emb.weight[29] = 6.0 * torch.ones(16)             # a marker token with a large norm
        model.scorer.start.weight[0] = model.scorer.end.weight[0] = 0.2
    opt = torch.optim.Adam(model.parameters(), lr=5e-4)
    g = torch.Generator().manual_seed(3)
    data = []
    for i in range(5):
        ids = torch.randint(0, 29, (8,), generator=g)
        if i == 3:
            ids[5] = 29
        data.append((ids, torch.tensor([0, 1, 3, 5]), torch.tensor([2, 2, 4, 5]), (torch.rand(8, generator=g) < 0.5).float()))

    def loss_fn(m, b):
        return nn.functional.mse_loss(m(*b[:3]), b[3])

    return dict(model=model, optimizer=opt, batches=data, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="eps_underflow_half", also=("log_of_zero",), module="consistency", phase="forward", op="aten.log1p", first_bad_step=3,
                           loss_finite_at_first_bad_step=True, line="torch.log1p(-probabilities.clamp(max=1.0 - 1e-6))",
                           why="1 - 1e-6 is 1 in bfloat16, so the clamp does nothing and log1p(-1) is -inf"))
