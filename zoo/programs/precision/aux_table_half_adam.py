"""Two-tower recommender: everything is fp32 except a memory-saving fp16 side table, used from batch 2 on, whose untouched rows have gradient 0: Adam's eps 1e-8 is 0 in fp16."""
import torch, torch.nn as nn
class TwoTower(nn.Module):
    def __init__(s): super().__init__(); s.user = nn.Embedding(30, 8); s.item = nn.Embedding(30, 8); s.side = nn.Embedding(100, 8); s.side.half()
    def forward(s, u, i, t=None):
        v = s.item(i)
        if t is not None: v = v + s.side(t).float() * 20
        return torch.einsum("bd,bd->b", s.user(u), v)
def build():
    torch.manual_seed(0); model = TwoTower(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(5); bs = []
    for k in range(5):
        b = dict(u=torch.randint(0, 30, (16,), generator=g), i=torch.randint(0, 30, (16,), generator=g), y=torch.randint(0, 2, (16,), generator=g).float())
        if k >= 2: b["t"] = torch.randint(0, 40, (16,), generator=g)
        bs.append(b)
    def loss_fn(m, b): return nn.functional.binary_cross_entropy_with_logits(m(b["u"], b["i"], b.get("t")), b["y"])
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="adam_eps_underflow_half", module="optimizer", phase="optimizer", op="aten.addcdiv_", first_bad_step=2, loss_finite_at_first_bad_step=True, param="side.weight",
                           why="Rows with gradient 0 have sqrt(v)+eps = 0 in fp16: 0/0 in the update."))
