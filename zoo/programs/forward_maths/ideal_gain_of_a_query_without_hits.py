"""Learning to rank with an approximate NDCG: the gain of a query is divided by its ideal gain. For a query without any relevant document the ideal gain is zero.
After https://github.com/meta-pytorch/torchrec/pull/1270 (for sessions with all labels 0 both DCG and IDCG are 0; the NDCG is set to 0.0).
True cause: division by zero."""
import torch
from torch import nn


def approx_ndcg(scores, labels, temperature=0.1):
    pairwise = torch.sigmoid((scores[:, None, :] - scores[:, :, None]) / temperature)
    ranks = 0.5 + pairwise.sum(-1)
    gains = torch.pow(2.0, labels) - 1
    dcg = (gains / torch.log2(1 + ranks)).sum(-1)
    ideal = gains.sort(-1, descending=True).values
    discounts = 1 / torch.log2(torch.arange(scores.shape[1]) + 2.0)
    return dcg / (ideal * discounts).sum(-1)


class CrossRanker(nn.Module):
    def __init__(self, d=9):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(d, 20), nn.GELU())
        self.context = nn.MultiheadAttention(20, 2, batch_first=True)
        self.score = nn.Linear(20, 1)

    def forward(self, documents):
        h = self.embed(documents)
        return self.score(h + self.context(h, h, h, need_weights=False)[0]).squeeze(-1)


def build():
    torch.manual_seed(0)
    model = CrossRanker()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(6)
    batches = []
    for i in range(6):
        labels = torch.randint(0, 4, (5, 8), generator=g).float()
        labels[:, 0] = 1.0
        if i == 4:
            labels[3] = 0.0
        batches.append({"documents": torch.randn(5, 8, 9, generator=g), "labels": labels})

    def loss_fn(m, b):
        return 1 - approx_ndcg(m(b["documents"]), b["labels"]).mean()

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="forward", op="aten.div", first_bad_step=4, sample=3,
                           line="return dcg / (ideal * discounts).sum(-1)", why="query 3 has no relevant document: 0 / 0"))
