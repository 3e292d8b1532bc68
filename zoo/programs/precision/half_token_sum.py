"""A half precision language model whose token losses are summed in half precision."""
import torch, torch.nn as nn, torch.nn.functional as F

class LM(nn.Module):
    def __init__(s): super().__init__(); s.emb = nn.Embedding(64, 8); s.head = nn.Linear(8, 64)
    def forward(s, ids): return s.head(s.emb(ids))
def build():
    torch.manual_seed(0); model = LM().half(); opt = torch.optim.SGD(model.parameters(), lr=1e-6); g = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, 64, (n, 401), generator=g) for n in (4, 6, 48)]
    def loss_fn(m, ids): 
        logits = m(ids[:, :-1])
        logp = F.log_softmax(logits, -1).gather(-1, ids[:, 1:, None])
        return -logp.sum()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="fp16_loss_overflow", where="loss_fn", module="", phase="forward", op="aten.sum", first_bad_step=2, line="-logp.sum()"))
