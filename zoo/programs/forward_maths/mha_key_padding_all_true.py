"""nn.MultiheadAttention cross-attention from queries to a set of detected objects; a frame without objects has key_padding_mask all True.
Real: pytorch/pytorch#41508 and DETR-like forks. True cause: fully masked softmax row."""
import torch, torch.nn as nn

class CrossLayer(nn.Module):
    def __init__(s, d=16): super().__init__(); s.mha = nn.MultiheadAttention(d, 2, batch_first=True); s.norm = nn.LayerNorm(d)
    def forward(s, q, kv, pad): a, w = s.mha(q, kv, kv, key_padding_mask=pad); return s.norm(q + a)
class Tracker(nn.Module):
    def __init__(s): super().__init__(); s.queries = nn.Parameter(torch.randn(3, 16)); s.obj = nn.Linear(5, 16); s.cross = nn.ModuleList([CrossLayer(), CrossLayer()]); s.box = nn.Linear(16, 4)
    def forward(s, objs, pad):
        q = s.queries.expand(len(objs), -1, -1); kv = s.obj(objs)
        for l in s.cross: q = l(q, kv, pad)
        return s.box(q)

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Tracker(); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(9):
        n = torch.randint(1, 7, (4,), generator=g)
        if i == 7: n[0] = 0
        batches.append(dict(objs=torch.randn(4, 6, 5, generator=g), pad=torch.arange(6)[None] >= n[:, None], box=torch.rand(4, 3, 4, generator=g)))
    def loss_fn(m, b): return nn.functional.l1_loss(m(b["objs"], b["pad"]), b["box"])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=9, autocast_dtype=None,
                truth=dict(cause="softmax_fully_masked_row", module="cross.0.mha", phase="forward", op="aten._softmax", first_bad_step=7))
