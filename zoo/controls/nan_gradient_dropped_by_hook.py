"""CONTROL: sqrt at 0 gives an infinite gradient that the program's own tensor hook replaces by 0 (intended); high but stable lr, loss to exactly 0 in one batch."""
import torch, torch.nn as nn, torch.nn.functional as F
class Net(nn.Module):
    def __init__(s): super().__init__(); s.f = nn.Linear(4, 3, bias=False)
    def forward(s, x):
        h = s.f(x)
        if h.requires_grad: h.register_hook(lambda g: torch.nan_to_num(g, nan=0.0, posinf=0.0, neginf=0.0))
        return h.square().sum(-1).sqrt()
def build(fix=None):
    torch.manual_seed(0); model = Net(); opt = torch.optim.SGD(model.parameters(), lr=0.1); g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 4, generator=g), torch.rand(6, generator=g)) for _ in range(6)]
    for b in batches[1:]: b[0][2] = 0
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: F.mse_loss(m(b[0]), b[1]), steps=6, autocast_dtype=None,
                truth=dict(cause="benign", module=None, phase=None, op=None, first_bad_step=None, loss_finite_at_first_bad_step=None, also=[], why="non-finite values inside backward only, erased before any weight"))
