"""bf16 autocast: clamp(p, 1e-6, 1 - 1e-6) keeps 1.0 because 1 - 1e-6 rounds to 1 in bf16. The other log, log(p + 1e-6), is safe."""
import torch, torch.nn as nn, torch.nn.functional as F
class Sig(nn.Module):
    def __init__(s, up): super().__init__(); s.up = up
    def forward(s, z, y):
        p = torch.sigmoid(z.float() if s.up else z).clamp(1e-6, 1 - 1e-6)
        return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()
class Net(nn.Module):
    def __init__(s, fix): super().__init__(); s.body = nn.Linear(6, 8); s.a = nn.Linear(8, 3); s.b = nn.Linear(8, 1); s.bce = Sig(fix == "true"); s.fix = fix
    def forward(s, x, y):
        h = torch.tanh(s.body(x)); l = s.bce(s.b(h).squeeze(-1), y)
        return l if s.fix == "innocent" else l - 0.01 * torch.log(torch.softmax(s.a(h), -1).to(torch.bfloat16) + 1e-6).mean().float()
def build(fix=None):
    torch.manual_seed(0); model = Net(fix); opt = torch.optim.Adam(model.parameters(), lr=1e-3); g = torch.Generator().manual_seed(1)
    with torch.no_grad(): model.body.weight.zero_(); model.body.weight[:, 0] = 1.0; model.b.weight.fill_(1.5)
    batches = []
    for i in range(5):
        x = 0.1 * torch.randn(8, 6, generator=g); y = torch.ones(8)
        if i == 3: x[2, 0] = 3.0
        if i == 3: y[2] = 0.0
        batches.append((x, y))
    return dict(model=model, optimizer=opt, batches=batches, loss_fn=lambda m, b: m(*b), steps=5, autocast_dtype=torch.bfloat16,
                truth=dict(cause="eps_underflow_half", module="bce", phase="forward", op="aten.log", first_bad_step=3,
                           loss_finite_at_first_bad_step=False, also=["log_of_zero"], why="sigmoid(12) = 1 in bf16 and the clamp limit is 1 too; fp32 gives 1 - 6e-6"))
