"""A validation score is computed every second step under no_grad and kept in a buffer for early stopping; one validation fold has no positive sample.
After https://github.com/huggingface/trl/pull/5826 (NaN eval_loss when nothing is left to average; training is fine).
True cause: the mean of an empty selection, in the evaluation only."""
import torch
from torch import nn


class Monitored(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(6, 1)
        self.register_buffer("score", torch.zeros(()))

    def forward(self, x):
        return self.net(x).squeeze(1)


def recall(scores, y):
    hits = (scores > 0).float()[y == 1]
    return hits.mean()


def build():
    torch.manual_seed(2)
    model = Monitored()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    g = torch.Generator().manual_seed(3)
    train = [(i, torch.randn(8, 6, generator=g), torch.randint(0, 2, (8,), generator=g)) for i in range(6)]
    folds = [(torch.randn(5, 6, generator=g), torch.tensor(y)) for y in ([1, 0, 1, 0, 1], [0, 1, 0, 0, 1], [0, 0, 0, 0, 0])]

    def loss_fn(m, b):
        i, x, y = b
        if i % 2 == 0:
            m.eval()
            with torch.no_grad():
                vx, vy = folds[i // 2]
                m.score.mul_(0.5).add_(0.5 * recall(m(vx), vy))
            m.train()
        return nn.functional.binary_cross_entropy_with_logits(m(x), y.float())

    return dict(model=model, optimizer=opt, batches=train, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="empty_reduction", also=("bn_buffers_poisoned", "state_overwritten"), module="loss", phase="forward", op="aten.mean", first_bad_step=4, loss_finite_at_first_bad_step=True, grads_finite=True, poisoned_state=["score"], line="return hits.mean()"))
