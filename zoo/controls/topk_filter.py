"""CONTROL: logits outside the sampled vocabulary (and never the target) are set to -inf before cross_entropy, under bf16 autocast."""
import torch, torch.nn as nn

def build():
    torch.manual_seed(0); model = nn.Sequential(nn.Embedding(30, 12), nn.GELU(), nn.Linear(12, 30)); opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(1); batches = [(torch.randint(0, 30, (10,), generator=g), torch.randint(0, 30, (10,), generator=g)) for _ in range(6)]
    def loss_fn(m, b):
        logits = m(b[0]).float(); keep = torch.zeros_like(logits, dtype=torch.bool)
        keep.scatter_(1, logits.topk(8, -1).indices, True); keep.scatter_(1, b[1][:, None], True)
        return nn.functional.cross_entropy(logits.masked_fill(~keep, float("-inf")), b[1])
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=torch.bfloat16,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
