"""CONTROL: fp16 autocast with activations of 40000 to 60000, close below the limit of 65504, that a layer norm brings down again. Nothing overflows."""
import torch, torch.nn as nn

class Loud(nn.Module):
    def __init__(s): super().__init__(); s.fc = nn.Linear(4, 6); s.norm = nn.LayerNorm(6)
    def forward(s, x): h = s.fc(x); return s.norm((h / h.abs().amax() * 58000.0).half())

def build():
    torch.manual_seed(0); model = nn.Sequential(Loud(), nn.Linear(6, 3)); opt = torch.optim.RAdam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(5, 4, generator=g), torch.randint(0, 3, (5,), generator=g)) for _ in range(8)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]).float(), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=torch.float16,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
