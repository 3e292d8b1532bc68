"""Cluster codes in the manner of SwAV, Q = exp(scores / 0.05) and then Sinkhorn: the embeddings were never normalised, so a score of 5 is an exponent of 100.
True cause: exp overflow in the Sinkhorn module (Inf / Inf follows); subtracting the maximum first makes it finite."""
import torch, torch.nn as nn

class Sinkhorn(nn.Module):
    @torch.no_grad()
    def forward(s, score):
        q = torch.exp(score / 0.05).T; q = q / q.sum()
        for _ in range(3): q = q / q.sum(1, keepdim=True) / q.shape[0]; q = q / q.sum(0, keepdim=True) / q.shape[1]
        return (q * q.shape[1]).T
class Cluster(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(8, 6); s.proto = nn.Linear(6, 5, bias=False); s.sinkhorn = Sinkhorn()
    def forward(s, a, b): p, q = s.proto(s.enc(a)), s.proto(s.enc(b)); return p, s.sinkhorn(q)

def build():
    torch.manual_seed(0); model = Cluster(); opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 8, generator=g), torch.randn(6, 8, generator=g) * (9.0 if i == 2 else 1.0)) for i in range(4)]
    def loss_fn(m, b): p, code = m(*b); return -(code * (p / 0.5).log_softmax(-1)).sum(-1).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=3, autocast_dtype=None,
                truth=dict(cause="exp_overflow", module="sinkhorn", phase="forward", op="aten.exp", first_bad_step=2))
