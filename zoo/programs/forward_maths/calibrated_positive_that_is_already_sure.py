"""A sequential recommender with the generalised cross entropy: the positive score p is mapped to log(1 / (p^-beta - 1)). For a saturated positive p is exactly one
in float32, so the difference is zero.
After https://github.com/MTSWebServices/RecTools/pull/274 (losses of the sequential models: softmax, BCE, gBCE, sampled softmax).
True cause: division by zero."""
import torch
import torch.nn.functional as F
from torch import nn


class SelfAttentiveRec(nn.Module):
    def __init__(self, items=40, d=16, length=6):
        super().__init__()
        self.items = nn.Embedding(items, d, padding_idx=0)
        self.pos = nn.Embedding(length, d)
        self.encoder = nn.TransformerEncoderLayer(d, 2, 32, dropout=0.0, batch_first=True)

    def forward(self, history):
        x = self.items(history) + self.pos.weight[: history.shape[1]]
        causal = torch.ones(history.shape[1], history.shape[1]).triu(1).bool()
        return self.encoder(x, src_mask=causal)[:, -1]


class GBCE(nn.Module):
    def __init__(self, n_items, n_negatives, t=0.75):
        super().__init__()
        alpha = n_negatives / (n_items - 1)
        self.beta = alpha * (t * (1 - 1 / alpha) + 1 / alpha)

    def forward(self, positive, negative):
        p = torch.sigmoid(positive)
        transformed = torch.log(1.0 / (p.pow(-self.beta) - 1.0))
        logits = torch.cat([transformed.unsqueeze(-1), negative], -1)
        target = torch.zeros_like(logits)
        target[..., 0] = 1
        return F.binary_cross_entropy_with_logits(logits, target)


def build():
    torch.manual_seed(0)
    model = nn.ModuleDict({"net": SelfAttentiveRec(), "gbce": GBCE(39, 5)})
    with torch.no_grad():
        model["net"].items.weight[38] *= 25.0               # the one bestseller
    opt = torch.optim.Adam(model["net"].parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(2)
    sessions = []
    for i in range(5):
        sessions.append([torch.randint(1, 38, (4, 6), generator=g), torch.randint(1, 38, (4,), generator=g), torch.randint(1, 38, (4, 5), generator=g)])
    sessions[2][0][1], sessions[2][1][1] = 38, 38

    def loss_fn(m, batch):
        history, positive, negatives = batch
        state, table = m["net"](history), m["net"].items
        return m["gbce"]((state * table(positive)).sum(-1), torch.einsum("bd,bnd->bn", state, table(negatives)))

    return dict(model=model, optimizer=opt, batches=sessions, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="division_by_zero", also=("log_of_zero",), module="gbce", phase="forward", op="aten.reciprocal", also_op=("aten.div",), first_bad_step=2, sample=1,
                           line="torch.log(1.0 / (p.pow(-self.beta) - 1.0))", why="the sigmoid of the positive score is exactly 1, so p ** -beta - 1 is 0"))
