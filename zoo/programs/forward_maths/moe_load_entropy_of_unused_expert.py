"""Mixture of experts: the entropy of the expert load as an auxiliary loss; one expert gets no probability at all."""
import torch, torch.nn as nn, torch.nn.functional as F

class MoE(nn.Module):
    def __init__(s): super().__init__(); s.router = nn.Linear(8, 4); s.experts = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])
    def forward(s, x):
        gates = torch.softmax(s.router(x) * 8, -1); top = gates.argmax(-1)
        y = sum(torch.where((top == i)[:, None], gates[:, i:i + 1] * e(x), torch.zeros_like(x)) for i, e in enumerate(s.experts))
        return y, gates
def build():
    torch.manual_seed(0); model = MoE(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(16, 8, generator=g) for _ in range(4)]; batches[2] = batches[2] * 60
    def loss_fn(m, x):
        y, gates = m(x)
        entropy = -(gates * torch.log(gates)).sum(-1).mean()
        return F.mse_loss(y, x) - 0.01 * entropy
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="log_of_zero", where="loss_fn", module="", phase="forward", op="aten.log", first_bad_step=2, line="torch.log(gates)"))
