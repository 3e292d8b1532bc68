"""Recommender resumed with Adagrad: the restored accumulator of one embedding shard was offset by -5 (wrong zero point of an 8-bit state).
True cause: negative second moment in the restored optimizer state; weights, gradients and loss are finite, sqrt(negative) in the update is not."""
import copy, torch, torch.nn as nn

class TwoTower(nn.Module):
    def __init__(s): super().__init__(); s.u = nn.EmbeddingBag(12, 6, mode="sum"); s.i = nn.Embedding(15, 6); s.mlp = nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 1))
    def forward(s, hist, item): return s.mlp(torch.cat([s.u(hist), s.i(item)], -1)).squeeze(-1)

def build():
    torch.manual_seed(0); model = TwoTower(); opt = torch.optim.Adagrad(model.parameters(), lr=0.05); g = torch.Generator().manual_seed(1)
    batches = [(torch.randint(0, 12, (8, 3), generator=g), torch.randint(0, 15, (8,), generator=g), torch.randint(0, 2, (8,), generator=g).float()) for _ in range(8)]
    def loss_fn(m, b): return nn.functional.binary_cross_entropy_with_logits(m(b[0], b[1]), b[2])
    for b in batches[:3]: opt.zero_grad(); loss_fn(model, b).backward(); opt.step()
    sd = copy.deepcopy(opt.state_dict()); sd["state"][1]["sum"][8:] -= 5.0; opt.load_state_dict(sd)
    return dict(model=model, optimizer=opt, batches=batches[3:], loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="corrupt_optimizer_state", module="optimizer", phase="optimizer", op="aten.sqrt", first_bad_step=0, loss_finite_at_first_bad_step=True, param="i.weight"))
