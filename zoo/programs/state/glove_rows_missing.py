"""Text classifier whose vocabulary is extended during training: pretrained vectors are copied into new rows, and the file has no vector for one word (a NaN row).
True cause: the program itself wrote NaN into the embedding at step 4, under no_grad; the batch of the same step uses the row."""
import numpy as np, torch, torch.nn as nn

class Vocab(nn.Module):
    def __init__(s, n, d): super().__init__(); s.table = nn.Embedding(n, d); s.register_buffer("counts", torch.zeros(n))
    def forward(s, i): s.counts += torch.bincount(i.flatten(), minlength=len(s.counts)); return s.table(i)
class Clf(nn.Module):
    def __init__(s): super().__init__(); s.vocab = Vocab(30, 8); s.lstm = nn.LSTM(8, 8, batch_first=True); s.out = nn.Linear(8, 2)
    def forward(s, i): return s.out(s.lstm(s.vocab(i))[0][:, -1])

def build():
    torch.manual_seed(0); model = Clf(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    glove = np.random.RandomState(0).randn(5, 8).astype("float32") * 0.3; glove[3] = np.nan
    def extend(vocab, first):
        with torch.no_grad(): vocab.table.weight[first:first + len(glove)].copy_(torch.from_numpy(glove))
    batches = [(torch.randint(0, 25 if i < 4 else 30, (4, 6), generator=g), torch.randint(0, 2, (4,), generator=g), i == 4) for i in range(7)]
    batches[4][0][1, 2] = 28
    def loss_fn(m, b):
        if b[2]: extend(m.vocab, 25)
        return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="state_overwritten", module="loss", where="loss_fn", also_module=["vocab.table"], phase="forward", also_phase=["state"], op="aten.copy_", also_op=["aten.embedding"],
                           first_bad_step=4, state="vocab.table.weight"))
