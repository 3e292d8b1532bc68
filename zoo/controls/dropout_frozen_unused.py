"""CONTROL: dropout (the loss of every replay depends on the random state), a frozen layer without gradients, a parameter that no forward uses, and
an embedding most of whose rows never get a gradient (0 / (sqrt(0) + eps) in Adam is 0 in fp32)."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s):
        super().__init__(); s.emb = nn.Embedding(50, 8); s.frozen = nn.Linear(8, 8).requires_grad_(False); s.drop = nn.Dropout(0.5)
        s.head = nn.Linear(8, 3); s.unused = nn.Parameter(torch.randn(4))
    def forward(s, ids): return s.head(s.drop(torch.relu(s.frozen(s.emb(ids)))).mean(1))

def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=1e-2); g = torch.Generator().manual_seed(1)
    batches = [(torch.randint(0, 6, (8, 4), generator=g), torch.randint(0, 3, (8,), generator=g)) for _ in range(8)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
