"""Recommender with an fp32 trunk and a half-precision id table that is only used from step 3 on (cold phase first): AdamW's eps 1e-8 is 0
in the fp16 state, untouched rows get 0 / (0 + 0). True cause: Adam eps underflow in half-precision state."""
import torch, torch.nn as nn

class Rec(nn.Module):
    def __init__(s): super().__init__(); s.dense = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8)); s.table = nn.Embedding(30, 8).half(); s.out = nn.Linear(8, 1)
    def forward(s, x, ids, warm): h = s.dense(x); h = h + s.table(ids).float() if warm else h; return s.out(h).squeeze(-1)

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Rec(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = [dict(x=torch.randn(8, 6, generator=g), ids=torch.randint(0, 30, (8,), generator=g), y=torch.randint(0, 2, (8,), generator=g).float(), warm=i >= 3) for i in range(6)]
    def loss_fn(m, b): return nn.functional.binary_cross_entropy_with_logits(m(b["x"], b["ids"], b["warm"]), b["y"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="adam_eps_underflow_half", module="optimizer", phase="optimizer", op="aten.addcdiv_", first_bad_step=3,
                           loss_finite_at_first_bad_step=True, param="table.weight"))
