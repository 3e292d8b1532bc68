"""Sentence encoder with masked mean pooling; the tokenizer returned nothing for an emoji-only review: sum / 0 tokens.
True cause: the token count (denominator) of one sample is exactly 0."""
import torch, torch.nn as nn

class MeanPool(nn.Module):
    def forward(s, h, mask): return (h * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
class Encoder(nn.Module):
    def __init__(s):
        super().__init__(); s.emb = nn.Embedding(50, 12, padding_idx=0); s.gru = nn.GRU(12, 12, batch_first=True, bidirectional=True); s.pool = MeanPool()
    def forward(s, ids): return s.pool(s.gru(s.emb(ids))[0], (ids != 0).float())
class Sentiment(nn.Module):
    def __init__(s): super().__init__(); s.enc = Encoder(); s.cls = nn.Linear(24, 3)
    def forward(s, ids): return s.cls(s.enc(ids))

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Sentiment(); opt = torch.optim.Adamax(model.parameters(), lr=2e-3)
    g = torch.Generator().manual_seed(5); batches = []
    for i in range(6):
        ids = torch.randint(1, 50, (5, 9), generator=g); n = torch.randint(3, 10, (5,), generator=g)
        if i == 2: n[4] = 0
        ids[torch.arange(9)[None] >= n[:, None]] = 0
        batches.append((ids, torch.randint(0, 3, (5,), generator=g)))
    def loss_fn(m, b): return nn.functional.cross_entropy(m(b[0]), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=5, autocast_dtype=None,
                truth=dict(cause="empty_reduction", module="enc.pool", phase="forward", op="aten.div", first_bad_step=2))
