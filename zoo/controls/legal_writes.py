"""CONTROL: the program writes its own state legally: VQ codebook reset with an own generator, WGAN-style weight clipping in place, an EMA copy as buffer, a call counter that changes the branch,
sparse embedding gradients, and batches from a generator (single pass)."""
import torch, torch.nn as nn

class VQ(nn.Module):
    def __init__(s):
        super().__init__(); s.code = nn.Parameter(torch.randn(8, 4)); s.register_buffer("use", torch.zeros(8)); s.gen = torch.Generator().manual_seed(7); s.calls = 0
    def forward(s, z):
        s.calls += 1; i = torch.cdist(z, s.code).argmin(-1); s.use.mul_(0.9).index_add_(0, i, torch.ones(len(i)))
        if s.calls % 3 == 0:
            with torch.no_grad():
                dead = s.use < 0.5; s.code[dead] = z.detach()[torch.randint(0, len(z), (int(dead.sum()),), generator=s.gen)]
        q = s.code[i]; return z + (q - z).detach(), (q - z.detach()).pow(2).mean()
class Net(nn.Module):
    def __init__(s): super().__init__(); s.enc = nn.Linear(6, 4); s.vq = VQ(); s.dec = nn.Linear(4, 6); s.register_buffer("ema", s.dec.weight.detach().clone()); s.tag = nn.Embedding(5, 4, sparse=True)
    def forward(s, x, t):
        with torch.no_grad(): s.dec.weight.clamp_(-0.3, 0.3); s.ema.lerp_(s.dec.weight, 0.1)
        z, l = s.vq(s.enc(x) + s.tag(t)); return s.dec(z), l
def build(fix=None):
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=0.05)
    def stream():
        g = torch.Generator().manual_seed(1)
        for _ in range(12): yield torch.randn(8, 6, generator=g), torch.randint(0, 5, (8,), generator=g)
    def loss_fn(m, b): r, l = m(*b); return (r - b[0]).pow(2).mean() + l
    return dict(model=model, optimizer=opt, batches=stream(), loss_fn=loss_fn, steps=12, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None))
