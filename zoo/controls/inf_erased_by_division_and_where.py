"""CONTROL: Inf and -inf that are handled: 5/Inf = 0 diffusion weights, log(0) of padding under a double where, xlogy(0, 0), logsumexp with -inf terms, deg^-1/2 of isolated nodes."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.f = nn.Linear(6, 6)
    def forward(s, x, t, pad, A):
        d = A.sum(-1).pow(-0.5); d = d.masked_fill(torch.isinf(d), 0.0); h = s.f(d[:, None] * (A @ (d[:, None] * x)) + x)
        snr = t / (1 - t); w = 5.0 / torch.maximum(snr, torch.tensor(5.0))
        p = torch.relu(h) * (~pad); safe = torch.where(pad | (p == 0), torch.ones_like(p), p); ll = torch.where(pad, torch.zeros_like(p), safe.log())
        prob = torch.zeros_like(h[0]); prob[0] = 1.0; ent = torch.xlogy(prob, prob).sum()
        lse = torch.logsumexp(h.masked_fill(pad, float("-inf")), -1)
        return (w * h.pow(2).mean(-1)).mean() + 0.01 * ll.mean() + ent + 0.1 * lse.mean()
def build(fix=None):
    torch.manual_seed(0); model = Net(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for k in range(8):
        t = torch.rand(5, generator=g); t[0] = 1.0; t[1] = 0.0; pad = torch.rand(5, 6, generator=g) < 0.4; pad[:, 0] = False
        A = (torch.rand(5, 5, generator=g) < 0.5).float(); A[4] = 0; A[:, 4] = 0; batches.append((torch.randn(5, 6, generator=g), t, pad, A))
    def loss_fn(m, b): return m(*b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
