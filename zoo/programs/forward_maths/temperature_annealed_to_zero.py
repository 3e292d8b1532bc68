"""CLIP-like training with an annealed temperature: 1 - step / 4 reaches 0 at step 4, and the logits are divided by it.
True cause: division by a temperature of exactly zero."""
import torch, torch.nn as nn

class Towers(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Linear(6, 8); s.b = nn.Linear(5, 8)
    def forward(s, x, y, temperature):
        u, v = nn.functional.normalize(s.a(x), dim=-1), nn.functional.normalize(s.b(y), dim=-1)
        return u @ v.t() / temperature

def build():
    torch.manual_seed(0); model = Towers(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = [(torch.randn(4, 6, generator=g), torch.randn(4, 5, generator=g), 1 - i / 4) for i in range(5)]
    def loss_fn(m, b): logits = m(*b); t = torch.arange(4); return (nn.functional.cross_entropy(logits, t) + nn.functional.cross_entropy(logits.t(), t)) / 2
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="division_by_zero", module="loss", phase="forward", op="aten.div", first_bad_step=4))
