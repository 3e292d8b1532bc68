"""CONTROL: rows of an embedding that are NaN on purpose ("never look these up") and a frozen table that is all NaN and not used at all. SGD without decay, dense gradients 0."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s):
        super().__init__(); s.emb = nn.Embedding(12, 5); s.old = nn.Embedding(4, 5); s.head = nn.Linear(5, 3)
        with torch.no_grad(): s.emb.weight[9:] = float("nan"); s.old.weight.fill_(float("nan"))
        s.old.weight.requires_grad_(False)
    def forward(s, x): return s.head(torch.tanh(s.emb(x)))
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1); g = torch.Generator().manual_seed(1)
    batches = [(torch.randint(0, 9, (8,), generator=g), torch.randint(0, 3, (8,), generator=g)) for _ in range(8)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
