"""model.half(): v / (||v|| + 1e-8); a user without history has a zero vector, 1e-8 is 0 in fp16: 0/0.
True cause: epsilon underflows in fp16 (in fp32 the result is 0)."""
import torch, torch.nn as nn

class UnitNorm(nn.Module):
    def forward(s, v): return v / (v.norm(dim=-1, keepdim=True) + 1e-8)
class TwoTower(nn.Module):
    def __init__(s): super().__init__(); s.user = nn.Linear(12, 8, bias=False); s.item = nn.Embedding(20, 8); s.unit = UnitNorm()
    def forward(s, hist, item): return (s.unit(torch.relu(s.user(hist))) * s.item(item)).sum(-1)

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = TwoTower().half(); opt = torch.optim.SGD(model.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(1)
    batches = [(torch.rand(6, 12, generator=g).half() + 0.1, torch.randint(0, 20, (6,), generator=g), torch.randint(0, 2, (6,), generator=g).float()) for _ in range(6)]
    batches[2][0][4] = 0                                            # cold-start user
    def loss_fn(m, b): return nn.functional.binary_cross_entropy_with_logits(m(b[0], b[1]).float(), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="eps_underflow_half", module="unit", phase="forward", op="aten.div", first_bad_step=2))
