"""The classes of a CSV file are numbered 1 and 2, the loss wants 0 and 1: for class 2 the binary cross-entropy is log(1-p) -
2 log p + ... and falls without end, through an embedding bag and two layers.
True cause: BCE target 2.0, outside [0, 1]."""
import torch, torch.nn as nn

class Bag(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.EmbeddingBag(40, 16); s.up = nn.Linear(16, 32); s.out = nn.Linear(32, 1)
    def forward(s, ids): return s.out(nn.functional.elu(s.up(s.emb(ids)))).squeeze(-1)

def build():
    torch.manual_seed(0); model = Bag(); opt = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    g = torch.Generator().manual_seed(1)
    batches = [dict(ids=torch.randint(0, 40, (16, 5), generator=g), label=torch.randint(1, 3, (16,), generator=g).float()) for _ in range(20)]
    def loss_fn(m, b): return nn.functional.binary_cross_entropy_with_logits(m(b["ids"]), b["label"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=14, autocast_dtype=None,
                truth=dict(cause="label_out_of_range", module="out", phase="forward", op="aten.addmm", first_bad_step=12))
