"""A deep MLP autoencoder with `nn.init.normal_(w, std=10)` "to break symmetry": activations grow 40-fold per layer, Inf in the first forward.
True cause: bad initialisation (finite once the weights are rescaled)."""
import torch, torch.nn as nn

class Deep(nn.Module):
    def __init__(s, d=32, n=30):
        super().__init__(); s.layers = nn.ModuleList(nn.Linear(d, d) for _ in range(n))
        for l in s.layers: nn.init.normal_(l.weight, std=10.0); nn.init.zeros_(l.bias)
    def forward(s, x):
        for l in s.layers[:-1]: x = torch.relu(l(x))
        return s.layers[-1](x)

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Deep(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = [torch.randn(8, 32, generator=g) for _ in range(4)]
    def loss_fn(m, x): return nn.functional.mse_loss(m(x), x)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="bad_initialisation", module="layers.24", phase="forward", op="aten.addmm", first_bad_step=0))
