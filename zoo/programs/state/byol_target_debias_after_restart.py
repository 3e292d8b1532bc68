"""BYOL-like self-distillation: the target network is an EMA of the online one, with a bias correction 1 - decay^n; after a "restart" n is
set to 0 and the correction divides by zero: the average is Inf, the online weights are finite. True cause: EMA poisoned."""
import copy, torch, torch.nn as nn

class BYOL(nn.Module):
    def __init__(s):
        super().__init__(); s.online = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 6)); s.pred = nn.Linear(6, 6); s.target = copy.deepcopy(s.online).requires_grad_(False)
    def forward(s, a, b):
        with torch.no_grad(): t = s.target(b)
        return 2 - 2 * nn.functional.cosine_similarity(s.pred(s.online(a)), t).mean()

def build():
    torch.set_num_threads(1); torch.manual_seed(0); model = BYOL(); opt = torch.optim.Adam([*model.online.parameters(), *model.pred.parameters()], lr=1e-3)
    raw = [torch.zeros_like(p) for p in model.target.parameters()]; st = dict(n=0, calls=0)
    @torch.no_grad()
    def ema(o, *a, decay=0.9):
        st["calls"] += 1; st["n"] += 1
        if st["calls"] == 5: st["n"] = 0                       # "restart the average" reset the count at the wrong place
        for r, p, q in zip(raw, model.online.parameters(), model.target.parameters()):
            r.mul_(decay).add_(p, alpha=1 - decay); q.copy_(r / (1 - torch.tensor(decay) ** st["n"]))
    opt.register_step_post_hook(ema)
    g = torch.Generator().manual_seed(1); batches = []
    for _ in range(8): x = torch.randn(8, 10, generator=g); batches.append((x + 0.1 * torch.randn(8, 10, generator=g), x + 0.1 * torch.randn(8, 10, generator=g)))
    def loss_fn(m, b): return m(*b)
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="ema_poisoned", module="target", phase="optimizer", op="aten.div", first_bad_step=4, loss_finite_at_first_bad_step=True,
                           poisoned_state=["target.0.weight", "target.0.bias", "target.2.weight", "target.2.bias"]))
