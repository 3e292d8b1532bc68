"""A deep MLP initialised with std 30: the activations overflow in the first forward pass."""
import torch, torch.nn as nn, torch.nn.functional as F

class Deep(nn.Module):
    def __init__(s):
        super().__init__(); s.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(24)]); s.head = nn.Linear(64, 2)
        for layer in s.layers: nn.init.normal_(layer.weight, std=30.0)
    def forward(s, x):
        for layer in s.layers: x = F.relu(layer(x))
        return s.head(x)
def build():
    torch.manual_seed(0); model = Deep(); opt = torch.optim.Adam(model.parameters(), lr=1e-4); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(4, 64, generator=g), torch.randint(0, 2, (4,), generator=g)) for _ in range(2)]
    def loss_fn(m, b): return F.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="bad_initialisation", module="layers.17", phase="forward", op="aten.addmm", first_bad_step=0, line="F.relu(layer(x))"))
