"""Attention scores are computed by baddbmm onto the mask, whose masked places hold finfo(fp16).min: a negative score of more than 16 pushes them to -Inf.
True cause: mask overflow in half precision. A query in an empty document has such scores for all its keys, and its softmax row is NaN."""
import torch, torch.nn as nn

class Scores(nn.Module):
    def forward(s, q, k, pad):
        mask = torch.zeros(pad.shape, dtype=q.dtype).masked_fill(pad, torch.finfo(q.dtype).min)[:, None, :].repeat(1, q.shape[1], 1)
        return torch.baddbmm(mask, q, k.transpose(1, 2))
class Attn(nn.Module):
    def __init__(s, d=8): super().__init__(); s.q = nn.Linear(d, d); s.k = nn.Linear(d, d); s.scores = Scores()
    def forward(s, x, pad): return s.scores(s.q(x), s.k(x), pad).softmax(-1) @ x

def build():
    torch.manual_seed(0); model = Attn()
    with torch.no_grad(): model.q.bias.fill_(3.0); model.k.bias.fill_(-3.0)       # a learned offset: every score is about -70
    model.half(); opt = torch.optim.SGD(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(2, 5, 8, generator=g).half(), torch.arange(5) >= torch.tensor([[5], [0 if i == 2 else 3]])) for i in range(4)]
    def loss_fn(m, b): return m(*b).float().square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="mask_overflow", module="scores", phase="forward", op="aten.baddbmm", first_bad_step=2))
