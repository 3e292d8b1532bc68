"""New tokens are initialised from the mean and the deviation of the old embeddings "of the same script". For one of the scripts the old vocabulary has a single token,
and the deviation of one row is NaN. The new rows of that script appear in the third batch.
After https://github.com/huggingface/transformers/pull/33325 (new rows are drawn from the mean and covariance of the old ones).
True cause: the deviation of a single element."""
import torch
from torch import nn

SCRIPTS = {"latin": range(0, 10), "greek": range(10, 15), "runic": range(15, 16)}


def grow(embedding, additions, g):
    """additions: how many tokens to add for each script. Returns the table and the ids of the new tokens."""
    rows, ids, old = [embedding.weight.detach()], {}, embedding.weight.detach()
    total = len(old)
    for script, count in additions.items():
        source = old[list(SCRIPTS[script])]
        mean, std = source.mean(0), source.std(0)
        rows.append(mean + 1e-2 * std * torch.randn(count, old.shape[1], generator=g))
        ids[script] = list(range(total, total + count))
        total += count
    table = nn.Embedding(total, old.shape[1])
    with torch.no_grad():
        table.weight.copy_(torch.cat(rows))
    return table, ids


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
    table, ids = grow(nn.Embedding(16, 10), {"latin": 2, "greek": 2, "runic": 1}, g)
    model = Tagger(table)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = []
    for i in range(4):
        tokens = torch.randint(0, 20, (3, 7), generator=g)
        if i == 2:
            tokens[1, 4] = ids["runic"][0]
        batches.append((tokens, torch.randint(0, 4, (3, 7), generator=g)))

    def loss_fn(m, b):
        return nn.functional.cross_entropy(m(b[0]).flatten(0, 1), b[1].flatten())

    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="std_of_one_element", also=("corrupt_checkpoint", "bad_initialisation"), module="table", also_module=("rnn",), phase="state", also_phase=("forward",), op="state",
                           also_op=("aten.embedding", "aten.std"), param="table.weight", first_bad_step=0, line="mean, std = source.mean(0), source.std(0)",
                           why="the new runic row is NaN from the beginning: std of one row"))
