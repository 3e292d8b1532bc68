"""MoE router with capacity masks: experts that are full get -inf (innocent in all batches); in batch 3 one token finds EVERY expert full and its softmax row is NaN. The token's output is then dropped from the loss, but its gradient is not."""
import torch, torch.nn as nn
class Router(nn.Module):
    def __init__(s, d, e): super().__init__(); s.gate = nn.Linear(d, e, bias=False); s.prob = nn.Softmax(dim=-1)
    def forward(s, x, full): return s.prob(s.gate(x).masked_fill(full, -torch.inf))
class Block(nn.Module):
    def __init__(s, d=8, e=3): super().__init__(); s.router = Router(d, e); s.experts = nn.Parameter(torch.randn(e, d, d) * 0.3)
    def forward(s, x, full): return x + torch.einsum("ne,nd,edf->nf", s.router(x, full), x, s.experts)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.block = Block(); s.head = nn.Linear(8, 5)
    def forward(s, x, full): return s.head(s.block(x, full))
def build():
    torch.manual_seed(0); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); bs = []
    for i in range(6):
        full = torch.rand(10, 3, generator=g) < 0.4; full[:, 0] = False
        if i == 3: full[6] = True
        bs.append((torch.randn(10, 8, generator=g), full, torch.randint(0, 5, (10,), generator=g)))
    def loss_fn(m, b):
        x, full, y = b; l = nn.functional.cross_entropy(m(x, full), y, reduction="none"); return l[~full.all(-1)].mean()
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="softmax_fully_masked_row", module="block.router.prob", phase="forward", op="aten._softmax", first_bad_step=3, loss_finite_at_first_bad_step=True,
                           why="A token whose experts are all masked has a row of -Inf."))
