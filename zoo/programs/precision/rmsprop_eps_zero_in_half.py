"""RMSprop on half precision weights: eps 1e-8 is zero, and a row never gets a gradient."""
import torch, torch.nn as nn, torch.nn.functional as F

class Net(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(10, 4); s.out = nn.Linear(4, 2)
    def forward(s, i): return s.out(s.emb(i).mean(1))
def build():
    torch.manual_seed(0); model = Net().half(); opt = torch.optim.RMSprop(model.parameters(), lr=1e-3, eps=1e-8); g = torch.Generator().manual_seed(1)
    batches = [(torch.randint(0, 6, (4, 3), generator=g), torch.randint(0, 2, (4,), generator=g)) for _ in range(2)]
    def loss_fn(m, b): return F.cross_entropy(m(b[0]).float(), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="adam_eps_underflow_half", module="emb", phase="optimizer", op="aten.addcdiv_", first_bad_step=0, loss_finite_at_first_bad_step=True))
