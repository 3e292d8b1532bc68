"""Regression: one target of batch 3 is 1e25 (finite); its square overflows. The log-variance head (clamped) and its exp are innocent."""
import torch, torch.nn as nn, torch.nn.functional as F
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.f = nn.Linear(5, 8); s.mu = nn.Linear(8, 1); s.lv = nn.Linear(8, 1); s.fix = fix
    def forward(s, x):
        h = torch.relu(s.f(x)); lv = s.lv(h).clamp(-8, 8)
        return s.mu(h).squeeze(-1), torch.zeros(len(x)) if s.fix == "innocent" else lv.squeeze(-1)
def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.RMSprop(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1); batches = []
    for i in range(6):
        y = torch.randn(8, generator=g)
        if i == 3: y[5] = 1.0 if fix == "true" else 1e25
        batches.append((torch.randn(8, 5, generator=g), y))
    def loss_fn(m, b): mu, lv = m(b[0]); return 0.5 * (torch.exp(-lv) * (b[1] - mu) ** 2 + lv).mean()
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=loss_fn, steps=6, autocast_dtype=None,
                truth=dict(cause="input_out_of_scale", module="loss", phase="forward", op="aten.pow", first_bad_step=3, bad_path="[1][5]",
                           loss_finite_at_first_bad_step=False, also=["bad_input_data"], why="(1e25)**2 overflows"))
