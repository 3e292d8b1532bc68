"""CONTROL: Gaussian NLL that turns negative and keeps falling (log-variance clamped), a batch of size one, zero gradients for a frozen-out head."""
import torch, torch.nn as nn

class Net(nn.Module):
    def __init__(s): super().__init__(); s.body = nn.Sequential(nn.Linear(4, 16), nn.Tanh()); s.mu = nn.Linear(16, 1); s.lv = nn.Linear(16, 1); s.unused = nn.Linear(16, 3)
    def forward(s, x): h = s.body(x); return s.mu(h), s.lv(h).clamp(-9, 5), s.unused(h)
def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = Net(); opt = torch.optim.AdamW(model.parameters(), lr=2e-2)
    g = torch.Generator().manual_seed(1); batches = []
    for i in range(40): x = torch.randn(1 if i % 10 == 9 else 32, 4, generator=g); batches.append((x, 0.1 * x[:, :1]))
    def loss_fn(m, b):
        mu, lv, aux = m(b[0]); return (0.5 * (lv + (mu - b[1]).square() * torch.exp(-lv))).mean() + 0.0 * aux.sum()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=40, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
