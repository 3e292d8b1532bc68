"""CONTROL: a key/value cache from torch.empty with room for 16 tokens (filled with NaN here, as fresh memory may be), written up to the length and read only up to it; ring buffer likewise."""
import torch, torch.nn as nn

class Attn(nn.Module):
    def __init__(s, d=6): super().__init__(); s.q, s.k, s.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d); s.ring = torch.full((4,), float("nan")); s.pos = 0
    def forward(s, x):
        B, T, d = x.shape; kc = torch.empty(B, 16, d); kc.fill_(float("nan")); vc = torch.empty(B, 16, d)
        kc[:, :T] = s.k(x); vc[:, :T] = s.v(x); s.ring[s.pos % 4] = float(T); s.pos += 1
        return torch.softmax(s.q(x) @ kc[:, :T].transpose(1, 2), -1) @ vc[:, :T]
def build():
    torch.manual_seed(0); model = nn.Sequential(Attn(), nn.Linear(6, 6)); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    batches = [torch.randn(2, 3 + i % 5, 6, generator=g) for i in range(8)]
    def loss_fn(m, b): return nn.functional.mse_loss(m(b), b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=8, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
