"""Mixture density network whose likelihood underflows before the log."""
import torch, torch.nn as nn, torch.nn.functional as F

class MDN(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Linear(3, 16); s.pi = nn.Linear(16, 3); s.mu = nn.Linear(16, 3); s.raw = nn.Linear(16, 3)
    def forward(s, x): h = torch.tanh(s.body(x)); return torch.softmax(s.pi(h), -1), s.mu(h), F.softplus(s.raw(h)) + 0.05
def build():
    torch.manual_seed(0); model = MDN(); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(8, 3, generator=g), torch.randn(8, 1, generator=g)) for _ in range(4)]; batches[2][1][3] = 30.0
    def loss_fn(m, b):
        pi, mu, sigma = m(b[0])
        density = torch.exp(-0.5 * ((b[1] - mu) / sigma) ** 2) / sigma
        likelihood = (pi * density).sum(-1)
        return -likelihood.log().mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=4, autocast_dtype=None,
                truth=dict(cause="log_of_zero", where="loss_fn", module="", phase="forward", op="aten.log", first_bad_step=2, line="-likelihood.log().mean()"))
