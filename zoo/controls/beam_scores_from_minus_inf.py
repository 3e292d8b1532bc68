"""CONTROL: log-space scores start at -inf and are combined with logaddexp."""
import torch, torch.nn as nn, torch.nn.functional as F

class Scan(nn.Module):
    def __init__(s): super().__init__(); s.lin = nn.Linear(4, 3)
    def forward(s, x):
        e = F.log_softmax(s.lin(x), -1); alpha = torch.full((len(x), 3), float("-inf")); alpha[:, 0] = 0.0
        for t in range(x.shape[1]): alpha = torch.logsumexp(alpha[:, :, None] + torch.zeros(3, 3)[None], 1) + e[:, t]
        return torch.logsumexp(alpha, 1)
def build():
    torch.manual_seed(0); model = Scan(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(4, 5, 4, generator=g) for _ in range(4)]
    def loss_fn(m, x): return m(x).square().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
