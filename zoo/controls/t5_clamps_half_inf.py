"""CONTROL: a T5-like block under fp16 autocast whose activation does pass 65504, and which clamps the Inf away as T5 does. Loss and gradients stay finite."""
import torch, torch.nn as nn

class Ff(nn.Module):
    def __init__(s): super().__init__(); s.wi = nn.Linear(8, 16); s.wo = nn.Linear(16, 8); s.norm = nn.LayerNorm(8)
    def forward(s, x):
        h = s.wo(torch.relu(s.wi(x)))
        if h.dtype == torch.float16:
            top = torch.finfo(h.dtype).max - 1000; h = torch.clamp(h, min=-top, max=top)
        return s.norm(x + h)

def build():
    torch.manual_seed(0); model = nn.Sequential(Ff(), nn.Linear(8, 4)); opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    with torch.no_grad():
        model[0].wi.weight.fill_(20.0); model[0].wo.weight.copy_(torch.randn(8, 16) * 5); model[0].wo.weight[0] = 300.0
    g = torch.Generator().manual_seed(1); batches = [(torch.rand(4, 8, generator=g) + 0.5, torch.randint(0, 4, (4,), generator=g)) for _ in range(5)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]).float(), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=torch.float16,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
