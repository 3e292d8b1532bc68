"""Supervised contrastive loss: the last batch has one sample, and its only column is the masked diagonal."""
import torch, torch.nn as nn, torch.nn.functional as F

class Encoder(nn.Module):
    def __init__(s): super().__init__(); s.net = nn.Linear(8, 4)
    def forward(s, x): return F.normalize(s.net(x), dim=-1)
def build():
    torch.manual_seed(0); model = Encoder(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(n, 8, generator=g), torch.arange(n) % 2) for n in (6, 6, 6, 1)]
    def loss_fn(m, b):
        z = m(b[0]); sim = z @ z.t() / 0.1; eye = torch.eye(len(z), dtype=torch.bool)
        logp = F.log_softmax(sim.masked_fill(eye, float("-inf")), dim=1)
        positive = (b[1][:, None] == b[1][None]) & ~eye
        return -(logp.masked_fill(~positive, 0).sum(1) / positive.sum(1).clamp(min=1)).mean() + logp.masked_fill(eye, 0).mean() * 0.0 + sim.square().mean() * 0.01 - F.softmax(sim.masked_fill(eye, float("-inf")), 1).square().mean() * 0.1
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="softmax_fully_masked_row", where="loss_fn", module="", phase="forward", op="aten._softmax", first_bad_step=3, line="F.softmax(sim.masked_fill"))
