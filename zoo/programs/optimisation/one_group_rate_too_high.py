"""Two parameter groups: the head has an absurd lr (1e12, meant 1e-2). A residual exp gate in the body looks dangerous but is bounded."""
import torch, torch.nn as nn, torch.nn.functional as F
class Gate(nn.Module):
    def __init__(s, on): super().__init__(); s.on = on
    def forward(s, h): return h * torch.exp(torch.tanh(h)) if s.on else h
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.body = nn.Linear(8, 16); s.gate = Gate(fix != "innocent"); s.head = nn.Linear(16, 1)
    def forward(s, x): return s.head(s.gate(torch.tanh(s.body(x))))
def build(fix=None):
    torch.manual_seed(0); model = Net(fix)
    opt = torch.optim.SGD([dict(params=model.body.parameters(), lr=0.0), dict(params=model.head.parameters(), lr=1e-2 if fix == "true" else 1e12)], foreach=True)
    g = torch.Generator().manual_seed(1); x = torch.randn(16, 8, generator=g); y = torch.randn(16, 1, generator=g); batches = [(x, y)] * 6
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: F.mse_loss(m(b[0]), b[1]), steps=5, autocast_dtype=None,
                truth=dict(cause="lr_too_high", module="loss", phase="forward", op="aten.mse_loss", first_bad_step=2, param_group=1,
                           loss_finite_at_first_bad_step=False, also=["exploding_gradient"], why="the head's rate of 1e12 multiplies the error by about 1e12 per step"))
