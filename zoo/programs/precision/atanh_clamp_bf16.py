"""Hyperbolic head under bf16: atanh(x.clamp(-1+1e-4, 1-1e-4)). 1-1e-4 is 1.0 in bf16, so the clamp protects nothing and atanh(1) = inf.
In fp32 the same line is finite everywhere (atanh(0.9999) = 4.95)."""
import torch, torch.nn as nn

class LogMap(nn.Module):
    def forward(s, x):
        x = x.clamp(-1 + 1e-4, 1 - 1e-4)
        return torch.atanh(x)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(5, 6); s.logmap = LogMap(); s.head = nn.Linear(6, 3)
    def forward(s, x): return s.head(s.logmap(torch.tanh(s.enc(x))))

def build():
    torch.manual_seed(0); model = Net().to(torch.bfloat16); opt = torch.optim.SGD(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1)
    batches = [((torch.randn(8, 5, generator=g) * 0.3).to(torch.bfloat16), torch.randint(0, 3, (8,), generator=g)) for _ in range(6)]
    with torch.no_grad(): model.enc.bias.zero_(); model.enc.weight.clamp_(-0.3, 0.3); model.enc.weight[2] = torch.tensor([0.1, 0.1, 0.1, 0.1, 3.0])
    for i, b in enumerate(batches): b[0][:, 4] = 6.0 if i == 4 else 0.1          # tanh(18): 1.0 in any dtype, clamped in fp32
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]).float(), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="eps_underflow_half", module="logmap", phase="forward", op="aten.atanh", first_bad_step=4,
                           **{"not": ["log_of_zero", "arccos_boundary", "division_by_zero", "where_unselected_branch", "input_out_of_scale"]}))
