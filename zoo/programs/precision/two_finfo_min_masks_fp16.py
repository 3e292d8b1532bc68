"""fp16 attention with two additive masks, padding and document boundary, each finfo(fp16).min: their sum is -inf. With one mask a fully
padded row would be harmlessly uniform; with both it becomes all -inf and NaN. True cause: mask overflow in the add."""
import torch, torch.nn as nn

class Attn(nn.Module):
    def __init__(s, d): super().__init__(); s.qkv = nn.Linear(d, 3 * d); s.o = nn.Linear(d, d)
    def forward(s, x, pad, doc):
        q, k, v = s.qkv(x).chunk(3, -1); w = torch.matmul(q, k.transpose(1, 2)) * 0.25; lo = torch.finfo(w.dtype).min
        w = w + pad[:, None].to(w.dtype) * lo
        w = w + doc.to(w.dtype) * lo
        return s.o(torch.softmax(w, -1) @ v)
class Net(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(20, 16); s.attn = Attn(16); s.out = nn.Linear(16, 20)
    def forward(s, ids, pad, doc): return s.out(s.attn(s.emb(ids), pad, doc))

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Net().half(); opt = torch.optim.SGD(model.parameters(), lr=0.05)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(7):
        ids = torch.randint(0, 20, (3, 6), generator=g); pad = torch.zeros(3, 6, dtype=torch.bool); doc = torch.zeros(3, 6, 6, dtype=torch.bool)
        if i < 4: pad[0, 4:] = True; doc[1, 3:, :3] = True; doc[1, :3, 3:] = True
        if i == 4: pad[2] = True; doc[2] = True                      # dropped document: masked twice
        batches.append((ids, pad, doc))
    def loss_fn(m, b): return nn.functional.cross_entropy(m(*b).flatten(0, 1).float(), b[0].flatten())
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="mask_overflow", module="attn", phase="forward", op="aten.add", first_bad_step=4))
