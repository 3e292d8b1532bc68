"""Attention without the 1/sqrt(d) before the product, under fp16 autocast: the scores of one head exceed 65504 on a long document.
True cause: fp16 overflow of q k^T; in fp32 the softmax is finite."""
import torch, torch.nn as nn

class Head(nn.Module):
    def __init__(s, d): super().__init__(); s.q = nn.Linear(d, d, bias=False); s.k = nn.Linear(d, d, bias=False); s.v = nn.Linear(d, d, bias=False)
    def forward(s, x): return torch.softmax(torch.bmm(s.q(x), s.k(x).transpose(1, 2)), -1) @ s.v(x)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.heads = nn.ModuleList([Head(16) for _ in range(2)]); s.out = nn.Linear(32, 4)
    def forward(s, x): return s.out(torch.cat([h(x) for h in s.heads], -1).mean(1))

def build():
    torch.manual_seed(0); model = Net(); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model.heads[1].q.weight.copy_(20 * torch.eye(16)); model.heads[1].k.weight.copy_(20 * torch.eye(16))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = [(torch.randn(3, 5, 16, generator=g) * (5.0 if i == 2 else 0.5), torch.randint(0, 4, (3,), generator=g)) for i in range(4)]
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]).float(), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=torch.float16,
                truth=dict(cause="fp16_forward_overflow", module="heads.1", phase="forward", op="aten.bmm", first_bad_step=2))
