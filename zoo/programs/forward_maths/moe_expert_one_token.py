"""Mixtral-like MoE whose experts standardise their own tokens with the unbiased std: in batch 3 expert 2 receives ONE token.
Routing is by a fixed hash of the token id, so the step is sure."""
import torch, torch.nn as nn
class Expert(nn.Module):
    def __init__(s, d): super().__init__(); s.w1 = nn.Linear(d, 2 * d); s.w2 = nn.Linear(2 * d, d)
    def forward(s, t):
        t = (t - t.mean(0)) / (t.std(0) + 1e-5)
        return s.w2(nn.functional.silu(s.w1(t)))
class HashMoE(nn.Module):
    def __init__(s, d, n=3): super().__init__(); s.experts = nn.ModuleList(Expert(d) for _ in range(n))
    def forward(s, x, ids):
        flat, r = x.flatten(0, 1), ids.flatten() % len(s.experts); out = torch.zeros_like(flat)
        for k, e in enumerate(s.experts):
            idx = (r == k).nonzero()[:, 0]
            if idx.numel(): out = out.index_add(0, idx, e(flat[idx]))
        return x + out.view_as(x)
class LM(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(30, 12); s.moe = HashMoE(12); s.head = nn.Linear(12, 30)
    def forward(s, ids): return s.head(s.moe(s.emb(ids), ids))
def build():
    torch.manual_seed(0); model = LM(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(3); bs = []
    for i in range(5):
        ids = torch.arange(24).view(2, 12)[:, torch.randperm(12, generator=g)].clone()
        if i == 3: ids = ids - (ids % 3 == 2).long(); ids[0, 0] = 5
        bs.append(ids)
    def loss_fn(m, ids): return nn.functional.cross_entropy(m(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="std_of_one_element", module="moe.experts.2", phase="forward", op="aten.std", first_bad_step=3,
                           loss_finite_at_first_bad_step=False, why="The unbiased std of a single token divides by 1-1=0."))
