"""A pointer network for tours draws the next city by F.gumbel_softmax after masking the visited ones with -inf; one instance has all its cities visited.
True cause: a fully masked row (instance 2 of batch 2); the -inf of the others are meant."""
import torch, torch.nn as nn

class Pointer(nn.Module):
    def __init__(s): super().__init__(); s.q = nn.Linear(6, 6); s.k = nn.Linear(6, 6)
    def forward(s, city, visited):
        score = torch.einsum("bd,bnd->bn", s.q(city.mean(1)), s.k(city)).masked_fill(visited, float("-inf"))
        return nn.functional.gumbel_softmax(score, tau=0.7)
class Tour(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Linear(2, 6); s.pointer = Pointer()
    def forward(s, xy, visited): return (s.pointer(s.emb(xy), visited).unsqueeze(-1) * xy).sum(1)

def build():
    torch.manual_seed(0); model = Tour(); opt = torch.optim.RAdam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.rand(4, 6, 2, generator=g), torch.rand(4, 6, generator=g) > 0.7) for _ in range(5)]
    for _, visited in batches: visited[:, 0] = False
    batches[2][1][2] = True
    def loss_fn(m, b): return m(*b).norm(dim=-1).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="softmax_fully_masked_row", module="pointer", phase="forward", op="aten._softmax", first_bad_step=2, grads_finite=True))
