"""Federated recommender: every second step the program averages two client copies into the model (legal writes, finite). The item table
was loaded from a checkpoint whose row 37 is NaN; that item is first seen at step 4."""
import copy, torch, torch.nn as nn

class Rec(nn.Module):
    def __init__(s): super().__init__(); s.user = nn.Embedding(20, 8); s.item = nn.Embedding(40, 8, sparse=False); s.mlp = nn.Linear(16, 1)
    def forward(s, u, i): return s.mlp(torch.cat([s.user(u), s.item(i)], -1)).squeeze(-1)

def build(fix=None):
    torch.manual_seed(0); model = Rec(); sd = copy.deepcopy(model.state_dict())
    if fix != "true": sd["item.weight"][37] = float("nan")                 # the shard was truncated on disk
    model.load_state_dict(sd)
    opt = torch.optim.SGD(model.parameters(), lr=0.05); g = torch.Generator().manual_seed(1); batches = []
    for k in range(7):
        i = torch.randint(0, 36, (16,), generator=g)
        if k == 4: i[3] = 37
        batches.append((torch.randint(0, 20, (16,), generator=g), i, torch.rand(16, generator=g), k))
    snap = {}
    def loss_fn(m, b):
        if fix != "innocent":
            if b[3] % 2 == 0: snap["mlp"] = m.mlp.weight.detach().clone()
            else:
                with torch.no_grad(): m.mlp.weight.copy_(0.5 * m.mlp.weight + 0.5 * snap["mlp"])   # the server's average
        return nn.functional.mse_loss(m(b[0], b[1]), b[2])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="corrupt_checkpoint", module="item", phase="forward", op="aten.embedding", first_bad_step=4, loss_finite_at_first_bad_step=False, also_step=[0], also_phase=["state"],
                           also=["uninitialised_memory", "state_overwritten"], state="item.weight[37]",
                           why="row 37 is NaN since load_state_dict (before step 0), read first at step 4; the averaging is innocent"))
