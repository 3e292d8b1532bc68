"""A deep ReLU network (NeRF-like) whose layers are made with torch.randn weights, without the 1/sqrt(fan_in): each layer multiplies the activations by about 6.
True cause: initialisation; overflow in the very first forward after some 50 different layers. Finite with the weights divided by sqrt(64)."""
import torch, torch.nn as nn

class Dense(nn.Module):
    def __init__(s, i, o): super().__init__(); s.w = nn.Parameter(torch.randn(o, i)); s.b = nn.Parameter(torch.zeros(o))
    def forward(s, x): return nn.functional.linear(x, s.w, s.b)
class Field(nn.Module):
    def __init__(s, depth=70, d=64):
        super().__init__(); s.inp = nn.Linear(6, d); s.trunk = nn.ModuleList([Dense(d, d) for _ in range(depth)]); s.rgb = nn.Linear(d, 3)
    def forward(s, x):
        x = s.inp(x)
        for l in s.trunk: x = torch.relu(l(x))
        return torch.sigmoid(s.rgb(x))

def build():
    torch.manual_seed(0); model = Field(); opt = torch.optim.Adam(model.parameters(), lr=5e-4); g = torch.Generator().manual_seed(1)
    batches = [(torch.rand(8, 6, generator=g), torch.rand(8, 3, generator=g)) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="bad_initialisation", module="trunk.51", phase="forward", op="aten.addmm", first_bad_step=0))
