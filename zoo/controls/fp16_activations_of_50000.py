"""CONTROL: fp16 autocast with activations up to about 50000 in every batch: large, but below 65504; the loss is taken in fp32."""
import torch, torch.nn as nn
class Net(nn.Module):
    def __init__(s): super().__init__(); s.a = nn.Linear(4, 4, bias=False); s.norm = nn.LayerNorm(4); s.b = nn.Linear(4, 3); nn.init.eye_(s.a.weight); s.a.weight.data.mul_(12500.0)
    def forward(s, x): return s.b(s.norm(s.a(x).float()))
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    bs = [(torch.rand(8, 4, generator=g) * 8 - 4, torch.randint(0, 3, (8,), generator=g)) for _ in range(8)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]).float(), b[1])
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=8, autocast_dtype=torch.float16, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None, why="Nothing overflows."))
