"""An embedding is initialised by uniform_(-vocab, vocab) raised by a units mistake to 1e20; its dot product with itself, the tied output
layer, overflows in the first forward.
True cause: bad initialisation of emb.weight."""
import torch, torch.nn as nn

class Tied(nn.Module):
    def __init__(s):
        super().__init__(); s.emb = nn.Embedding(14, 8); s.head = nn.Linear(8, 14, bias=False); s.head.weight = s.emb.weight
        nn.init.uniform_(s.emb.weight, -1e20, 1e20)
    def forward(s, ids): return s.head(s.emb(ids))

def build():
    torch.manual_seed(0); model = Tied(); opt = torch.optim.SGD(model.parameters(), lr=0.1); g = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, 14, (4, 6), generator=g) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[:, :-1]).flatten(0, 1), b[:, 1:].flatten())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="bad_initialisation", module="head", phase="forward", op="aten.mm", first_bad_step=0))
