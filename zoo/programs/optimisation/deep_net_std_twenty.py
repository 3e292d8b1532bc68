"""Twenty layers whose weights are drawn with a standard deviation of 20 instead of 0.02: each layer multiplies the signal by about 100, and
the very first forward leaves fp32.
True cause: bad initialisation; with weights a thousand times smaller the same step is finite."""
import torch, torch.nn as nn

class Layer(nn.Module):
    def __init__(s, d): super().__init__(); s.fc = nn.Linear(d, d); s.act = nn.ReLU(); nn.init.normal_(s.fc.weight, std=20.0)
    def forward(s, x): return s.act(s.fc(x))

def build():
    torch.manual_seed(0); model = nn.Sequential(*[Layer(48) for _ in range(20)], nn.Linear(48, 3)); opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(4, 48, generator=g), torch.randint(0, 3, (4,), generator=g)) for _ in range(3)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=2, autocast_dtype=None,
                truth=dict(cause="bad_initialisation", module="18.fc", phase="forward", op="aten.addmm", first_bad_step=0))
