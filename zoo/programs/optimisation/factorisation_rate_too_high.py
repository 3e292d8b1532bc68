"""Matrix factorisation for a recommender, SGD with momentum at a rate tuned for another scale of ratings (1..5 instead of 0..1). The error
multiplies both factor tables, so it grows faster than geometrically for several steps before anything overflows.
True cause: the learning rate is beyond stability; a tenth of it stays finite on the same batches."""  # measure only: not to be read while rules are changed
import torch, torch.nn as nn

class MF(nn.Module):
    def __init__(s, d=8):
        super().__init__(); s.user = nn.Embedding(30, d); s.item = nn.Embedding(40, d); s.mix = nn.Linear(d, 1)
        nn.init.normal_(s.user.weight, std=0.3); nn.init.normal_(s.item.weight, std=0.3)
    def forward(s, u, i): return s.mix(s.user(u) * s.item(i)).squeeze(-1)

def build():
    torch.manual_seed(21); model = MF(); opt = torch.optim.SGD(model.parameters(), lr=0.9, momentum=0.9, nesterov=True)
    g = torch.Generator().manual_seed(25)
    batches = [(torch.randint(0, 30, (64,), generator=g), torch.randint(0, 40, (64,), generator=g), torch.randint(1, 6, (64,), generator=g).float())
               for _ in range(40)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0], b[1]), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=10, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="mix", phase="forward", op="aten.addmm", first_bad_step=7))
