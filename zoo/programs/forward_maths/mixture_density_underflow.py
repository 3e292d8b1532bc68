"""Mixture density network whose likelihood is summed in probability space: a target some 15 sigma from every component has density
exactly 0 in fp32 and log(0) = -inf. (logsumexp over log-densities would be right.)
True cause: log of zero; the inputs are ordinary and everything before the log is finite."""  # measure only: not to be read while rules are changed
import math, torch, torch.nn as nn

class MDN(nn.Module):
    def __init__(s, k=4): super().__init__(); s.body = nn.Sequential(nn.Linear(5, 24), nn.Tanh()); s.pi, s.mu, s.sg = (nn.Linear(24, k) for _ in range(3))
    def forward(s, x):
        h = s.body(x); return torch.softmax(s.pi(h), -1), s.mu(h), nn.functional.softplus(s.sg(h)) + 0.1

def build():
    torch.manual_seed(4); model = MDN(); opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    g = torch.Generator().manual_seed(6); batches = []
    for i in range(8):
        x = torch.randn(16, 5, generator=g); y = x[:, :1] + 0.3 * torch.randn(16, 1, generator=g)
        if i == 5: y[11] = 14.5                                            # a rare but true label
        batches.append((x, y))
    def loss_fn(m, b):
        pi, mu, sg = m(b[0])
        dens = torch.exp(-0.5 * ((b[1] - mu) / sg) ** 2) / (sg * math.sqrt(2 * math.pi))
        return -torch.log((pi * dens).sum(-1)).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=7, autocast_dtype=None,
                truth=dict(cause="log_of_zero", module="loss", where="loss_fn", phase="forward", op="aten.log", first_bad_step=5))
