"""Agent training on packed tool traces: the loss averages each sequence over its own tokens. One sequence of a batch consists of tool output only,
so that no token of it counts.
After https://github.com/areal-project/AReaL/pull/463 (sequences with zero valid tokens must be skipped in the packed loss).
True cause: the mean over no tokens."""
import torch
from torch import nn


class TraceModel(nn.Module):
    def __init__(self, vocab=14, width=20):
        super().__init__()
        self.tok = nn.Embedding(vocab, width)
        self.rnn = nn.LSTM(width, width, batch_first=True)
        self.out = nn.Linear(width, vocab)

    def forward(self, flat_ids):
        h, _ = self.rnn(self.tok(flat_ids)[None])
        return self.out(h)[0]


def packed_sequence_loss(logits, ids, loss_mask, cu_seqlens):
    nll = nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="none") * loss_mask[1:]
    total = nll.new_zeros(())
    for start, end in zip(cu_seqlens[:-1], cu_seqlens[1:]):
        weights = loss_mask[1:][start:end]
        total = total + nll[start:end].sum() / weights.sum()
    return total / (len(cu_seqlens) - 1)


def trace(turns, g):
    """A trace is a list of (who, length); only the assistant's tokens are trained."""
    mask = torch.cat([torch.full((n,), float(who == "assistant")) for who, n in turns])
    return torch.randint(0, 14, (len(mask),), generator=g), mask


def build():
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(21)
    model = TraceModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    normal = [("user", 4), ("assistant", 5)]
    with_tool = [("user", 3), ("assistant", 4), ("tool", 6), ("assistant", 3)]
    cut = [("tool", 9)]
    plans = [[normal, with_tool], [with_tool, normal, normal], [normal, normal], [with_tool, normal], [normal, with_tool, normal],
             [normal, cut, with_tool], [normal]]
    packs = []
    for plan in plans:
        parts = [trace(turns, g) for turns in plan]
        cu = [0]
        for ids, _ in parts:
            cu.append(cu[-1] + len(ids))
        packs.append({"ids": torch.cat([p[0] for p in parts]), "mask": torch.cat([p[1] for p in parts]), "cu": cu})

    def loss_fn(m, pack):
        return packed_sequence_loss(m(pack["ids"]), pack["ids"], pack["mask"], pack["cu"])

    return dict(model=model, optimizer=optimizer, batches=packs, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="empty_reduction", also=("division_by_zero",), module="loss", phase="forward", op="aten.div", first_bad_step=5,
                           line="nll[start:end].sum() / weights.sum()", why="the second sequence of the pack has no trained token: 0 / 0"))
