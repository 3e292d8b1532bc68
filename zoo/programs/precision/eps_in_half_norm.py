"""A normalisation x / (norm + 1e-8) in a model cast to half: 1e-8 is 0 in fp16, and a padded row is all zeros.
True cause: eps underflows in half precision; in fp32 the row is simply 0."""
import torch, torch.nn as nn

class UnitNorm(nn.Module):
    def forward(s, x): return x / (x.norm(dim=-1, keepdim=True) + 1e-8)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(12, 8, padding_idx=0); s.norm = UnitNorm(); s.head = nn.Linear(8, 3)
    def forward(s, ids): return s.head(s.norm(s.emb(ids)).mean(1))

def build():
    torch.manual_seed(0); model = Net().half(); opt = torch.optim.SGD(model.parameters(), lr=0.01); g = torch.Generator().manual_seed(1)
    batches = [(torch.randint(1, 12, (4, 5), generator=g), torch.randint(0, 3, (4,), generator=g)) for _ in range(4)]
    batches[1][0][2, 4] = 0                                                       # padding
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]).float(), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="eps_underflow_half", module="norm", phase="forward", op="aten.div", first_bad_step=1))
