"""A state-space layer in its chunked, attention-like form: the decay between positions i and j is exp(cumsum_i - cumsum_j), needed for
j <= i only. The upper triangle is masked after the exponential. With a chunk of 128 and a decay near 2 its entries overflow to Inf;
masked_fill removes them and forward is finite. In backward the zero gradient meets the Inf: NaN. With short sequences (the first three
batches) nothing overflows. The true cause is the unselected part behind the mask."""
import torch
from torch import nn
import torch.nn.functional as F


class SSD(nn.Module):
    def __init__(self, d=16, state=8):
        super().__init__()
        self.bc = nn.Linear(d, 2 * state)
        self.dt = nn.Linear(d, 1)
        self.log_a = nn.Parameter(torch.zeros(1))
        nn.init.zeros_(self.dt.weight)
        nn.init.constant_(self.dt.bias, 1.85)

    def forward(self, x):
        b, c = self.bc(x).chunk(2, -1)
        a = -F.softplus(self.dt(x)).squeeze(-1) * self.log_a.exp()
        cum = a.cumsum(-1)
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        decay = (cum[:, :, None] - cum[:, None, :]).exp().masked_fill(future, 0.0)
        return (decay * (c @ b.transpose(1, 2))) @ x


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(30, 16)
        self.mixer = SSD()
        self.head = nn.Linear(16, 30)

    def forward(self, ids):
        return self.head(self.mixer(self.emb(ids)))


def loss_fn(model, ids):
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())


def build():
    torch.manual_seed(13)
    model = Model()
    batches = [torch.randint(0, 30, (4, 17)) for _ in range(3)] + [torch.randint(0, 30, (4, 129)) for _ in range(2)]
    truth = dict(
        cause="where_unselected_branch", also=["exp_overflow"], first_bad_step=3, phase="backward", module="mixer", op="aten.mul",
        line="decay = (cum[:, :, None] - cum[:, None, :]).exp().masked_fill(future, 0.0)", loss_finite_at_first_bad_step=True,
        why="masked entries of the exponential are Inf; the backward of exp multiplies them by the zero gradient of masked_fill",
        repair=(".exp().masked_fill(future, 0.0)", '.masked_fill(future, float("-inf")).exp()'),
    )
    return dict(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3), batches=batches, loss_fn=loss_fn, steps=5,
                autocast_dtype=None, truth=truth)
