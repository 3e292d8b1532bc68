"""CONTROL: a program that writes into its own parameters (WGAN weight clipping in a post hook, target-network copy every third step) and a linear-chain forward algorithm started from -Inf scores (logsumexp over partly -Inf rows)."""
import copy, torch, torch.nn as nn
class CRF(nn.Module):
    def __init__(s, k=4): super().__init__(); s.em = nn.Linear(6, k); s.tr = nn.Parameter(torch.randn(k, k) * 0.1); s.k = k
    def forward(s, x):
        e = s.em(x); a = torch.full((x.shape[0], s.k), float("-inf")); a[:, 0] = 0.0
        for t in range(x.shape[1]): a = torch.logsumexp(a[:, :, None] + s.tr, 1) + e[:, t]
        return torch.logsumexp(a, -1)
class Pair(nn.Module):
    def __init__(s): super().__init__(); s.online = CRF(); s.target = copy.deepcopy(s.online).requires_grad_(False)
    def forward(s, x): return s.online(x), s.target(x)
def build():
    torch.manual_seed(0); model = Pair(); opt = torch.optim.RMSprop(model.online.parameters(), lr=1e-3); k = [0]
    def post(o, *a):
        k[0] += 1
        with torch.no_grad():
            for p in model.online.parameters(): p.clamp_(-0.3, 0.3)
        if k[0] % 3 == 0: model.target.load_state_dict(model.online.state_dict())
    opt.register_step_post_hook(post); g = torch.Generator().manual_seed(1); bs = [torch.randn(5, 4, 6, generator=g) for _ in range(10)]
    def loss_fn(m, x): a, b = m(x); return (a - 0.9 * b - 1).pow(2).mean()
    return dict(model=model, optimizer=opt, batches=bs, loss_fn=loss_fn, steps=10, autocast_dtype=None, truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None, why="Writes are finite and the -Inf scores are the semiring's zero."))
