"""New tokens are initialised from the mean and the deviation of the old embeddings "of the same script". For one of the scripts the old vocabulary has a single token,
and the deviation of one row is NaN. The rows are written before the third batch.
After https://github.com/huggingface/transformers/pull/33325 (new rows are drawn from the mean and covariance of the old ones).
True cause: the deviation of a single element."""
import torch
from torch import nn

SCRIPTS = {"latin": range(0, 10), "greek": range(10, 15), "runic": range(15, 16)}


@torch.no_grad()
def introduce(table, additions, g):
    """Fill the reserved rows behind the old vocabulary. additions: how many tokens to add for each script."""
    row = 16
    for script, count in additions.items():
        source = table.weight[list(SCRIPTS[script])]
        mean, std = source.mean(0), source.std(0)
        table.weight[row:row + count] = mean + 1e-2 * std * torch.randn(count, table.embedding_dim, generator=g)
        row += count


class Tagger(nn.Module):
    def __init__(self, table, tags=4):
        super().__init__()
        self.table = table
        self.rnn = nn.GRU(table.embedding_dim, 14, batch_first=True, bidirectional=True)
        self.out = nn.Linear(28, tags)

    def forward(self, ids):
        return self.out(self.rnn(self.table(ids))[0])


def build():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(2)
    model = Tagger(nn.Embedding(24, 10))
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def epochs():
        for i in range(5):
            if i == 2:                                   # the second corpus brings new tokens
                introduce(model.table, {"latin": 2, "greek": 2, "runic": 1}, g)
            ids = torch.randint(0, 16 if i < 2 else 20, (3, 7), generator=g)
            if i == 2:
                ids[1, 4] = 20                           # the runic one
            yield ids, torch.randint(0, 4, (3, 7), generator=g)

    def loss_fn(m, b):
        return nn.functional.cross_entropy(m(b[0]).flatten(0, 1), b[1].flatten())

    return dict(model=model, optimizer=opt, batches=epochs(), loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="std_of_one_element", also=("state_overwritten", "bad_initialisation"), module="table", also_module=("rnn",), phase="state", also_phase=("forward",), op="state",
                           also_op=("aten.embedding", "aten.std"), param="table.weight", sample=1, first_bad_step=2, line="mean, std = source.mean(0), source.std(0)",
                           why="the new runic row is NaN from the third batch on: the deviation of one row"))
