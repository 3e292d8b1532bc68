"""CONTROL: fp16 autocast without a scaler; one layer's outputs reach 4e4 (limit 65504) and are normalised at once. Finite everywhere, in all 8 steps."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.big = nn.Linear(8, 8, bias=False); s.norm = nn.LayerNorm(8); s.head = nn.Linear(8, 3)
    def forward(s, x): return s.head(s.norm(s.big(x).float()))
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model.big.weight.copy_(torch.eye(8) * 4e4)
    batches = [(torch.rand(8, 8, generator=g) * 2 - 1, torch.randint(0, 3, (8,), generator=g)) for _ in range(8)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]).float(), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=torch.float16,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
